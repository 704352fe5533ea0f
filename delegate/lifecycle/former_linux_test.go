package lifecycle

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/scratch"
)

// testdata/former is what the version before results were noted one by one
// wrote of containers in these states: "died" in the middle of an Attach, and
// of "leaving" an Attach could not be undone.
var formers = []string{"added", "deleting", "died", "hotplugged", "leaving", "planned"}

// formerNode has a copy of testdata/former. The recorded namespaces are there
// if there is true.
func formerNode(t *testing.T, there bool) *node {
	t.Helper()
	n := newNode(t)
	n.Root = t.TempDir()
	if err := os.CopyFS(n.Dir, os.DirFS("testdata/former")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(n.Root, "run/netns"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range formers {
		if there {
			write(t, filepath.Join(n.Root, "run/netns", c))
		}
		rebase(t, filepath.Join(n.Dir, c, "multi@eth0.json"), filepath.Join(n.Root, "run/netns", c))
	}
	return n
}

// rebase makes the namespace at path the recorded one, if it is there.
func rebase(t *testing.T, file, path string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var st syscall.Stat_t
	if syscall.Stat(path, &st) == nil {
		here := fmt.Appendf(nil, `"dev":%d,"inode":%d`, st.Dev, st.Ino)
		text = regexp.MustCompile(`"dev":\d+,"inode":\d+`).ReplaceAll(text, here)
	}
	lines := bytes.Split(text, []byte("\n"))
	for i, line := range lines {
		if len(line) > 17 {
			sum := sha256.Sum256(line[17:])
			lines[i] = append([]byte(hex.EncodeToString(sum[:8])+" "), line[17:]...)
		}
	}
	if err := os.WriteFile(file, bytes.Join(lines, []byte("\n")), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Records of version 1 are read as what they say, and where they lie nothing
// changes.
func TestFormerRecordsAreRead(t *testing.T) {
	t.Parallel()
	n := formerNode(t, true)
	before := n.files()
	n.wantRecords("added/eth0 added", "deleting/eth0 deleting", "died/eth0 partial", "hotplugged/eth0 added", "leaving/eth0 partial", "planned/eth0 planned")
	for r, err := range n.Records(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for i, a := range r.Attached {
			got = append(got, fmt.Sprintf("%s %s %s result:%v whole:%v", a.IfName, a.Network.Name(), a.NetNS, a.Result != nil, r.Whole(i)))
			if a.Added != (a.Result != nil) || a.Gone != nil || a.Origin != nil {
				t.Errorf("%s %s: added %v, gone %v, origin %s", r.Key, a.IfName, a.Added, a.Gone, a.Origin)
			}
		}
		c := r.Key.ContainerID
		line := func(name string, rest ...any) string {
			return fmt.Sprintf("%s /run/netns/%s result:%v whole:%v", append([]any{name, c}, rest...)...)
		}
		want := map[string][]string{
			"added":      {line("eth0 blue", true, true), line("net0 red", true, true)},
			"deleting":   {line("eth0 blue", true, false), line("net0 red", true, false)},
			"died":       {line("eth0 blue", true, true), line("net0 red", true, true), line("hot0 green", false, false)},
			"hotplugged": {line("eth0 blue", true, true), line("net0 red", true, true), line("hot0 green", true, true)},
			"leaving":    {line("eth0 blue", true, true), line("net0 red", true, true), line("hot0 green", true, false)},
			"planned":    {line("eth0 blue", false, false), line("net0 red", false, false)},
		}[c]
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c, d)
		}
		a := r.Attached[0]
		if a.Args != "IgnoreUnknown=1;A=<&>" || string(a.CapabilityArgs["mac"]) != `"02:00:00:00:00:09"` || a.Network.Plugins()[1].Type() != "tuning" {
			t.Errorf("%s: %+v", c, a)
		}
		if r.NetNSGone() {
			t.Errorf("%s: its namespace has gone", c)
		}
	}
	if d := cmp.Diff(before, n.files()); d != "" {
		t.Errorf("files (-before +after):\n%s", d)
	}
	for r := range formerNode(t, false).Records(t.Context()) {
		if !r.NetNSGone() {
			t.Errorf("%s: its namespace is there", r.Key)
		}
	}
}

// What version 1 has attached is checked, without what it has left half done of
// one more.
func TestFormerRecordsAreChecked(t *testing.T) {
	t.Parallel()
	n := formerNode(t, true)
	for _, c := range formers {
		calls := len(n.exec.Calls())
		err := n.Check(t.Context(), key(c, "eth0"))
		if !slices.Contains([]string{"added", "hotplugged", "died", "leaving"}, c) {
			wantCode(t, err, 7)
			if len(n.exec.Calls()) > calls {
				t.Errorf("%s: %q", c, n.trace()[calls:])
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c, err)
		}
		bridge := n.first("CHECK bridge eth0", calls)
		if bridge.NetNS != "/run/netns/"+c || !strings.Contains(string(bridge.Stdin), `"n":9007199254740993`) || stdin(t, bridge)["prevResult"] == nil {
			t.Errorf("CHECK bridge: %s in %s", bridge.Stdin, bridge.NetNS)
		}
	}
}

// One more network is attached to what version 1 has attached, once what it
// had left half done is removed. The record is of this version then: it is
// checked, and one network of it is detached and the rest deleted.
func TestFormerRecordsAreAttachedTo(t *testing.T) {
	t.Parallel()
	for c, left := range map[string][]string{
		"added": nil, "hotplugged": nil, "died": {"DEL ipvlan hot0"}, "leaving": {"DEL ipvlan hot0"},
	} {
		t.Run(c, func(t *testing.T) {
			t.Parallel()
			n, k := formerNode(t, true), key(c, "eth0")
			a := attachment(network("gold", "ipvlan"), c, "hot1")
			a.NetNS = "/run/netns/" + c
			if _, err := n.Attach(t.Context(), k, Transaction{Plan: Plan(a)}); err != nil {
				t.Fatal(err)
			}
			var want []string
			for _, call := range append(left, "ADD ipvlan hot1") {
				want = append(want, call+" of "+c)
			}
			n.wantTrace(want...)
			text, err := os.ReadFile(n.recordFile(k))
			if err != nil || !bytes.Contains(text, []byte(`"version":2,`)) {
				t.Errorf("written: %s, %v", text, err)
			}
			if _, err := os.Lstat(filepath.Join(n.Dir, c)); !os.IsNotExist(err) {
				t.Errorf("the former directory is left: %v", err)
			}
			n = &node{Manager: &Manager{Invoker: n.Invoker, Dir: n.Dir, Root: n.Root}, exec: n.exec, t: t} // another process
			if err := n.Check(t.Context(), k); err != nil {
				t.Error(err)
			}
			for r, err := range n.Records(t.Context()) {
				if r.Key == k && (err != nil || r.State != scratch.Added) {
					t.Errorf("%s is %s, %v", r.Key, r.State, err)
				}
			}
			before := len(n.exec.Calls())
			if err := n.Detach(t.Context(), k, "hot1"); err != nil {
				t.Error(err)
			}
			n.del(k)
			var ran []string
			for _, call := range n.exec.Calls()[before:] {
				ran = append(ran, call.String())
				if call.NetNS != "/run/netns/"+c || stdin(t, call)["prevResult"] == nil {
					t.Errorf("%s: netns %q, %s", call, call.NetNS, call.Stdin)
				}
			}
			del := []string{"DEL ipvlan hot1", "DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0"}
			if c == "hotplugged" {
				del = append([]string{"DEL ipvlan hot1", "DEL ipvlan hot0"}, del[1:]...)
			}
			if d := cmp.Diff(del, ran); d != "" {
				t.Errorf("calls (-want +got):\n%s", d)
			}
		})
	}
}

// Every record of version 1 is deleted and collected, with the result and the
// namespace that it has; one whose namespace has gone, without a namespace.
func TestFormerRecordsAreDeletedAndCollected(t *testing.T) {
	t.Parallel()
	for _, there := range []bool{true, false} {
		for _, verb := range []string{"DEL", "GC"} {
			t.Run(fmt.Sprintf("%s, namespace there: %v", verb, there), func(t *testing.T) {
				t.Parallel()
				n := formerNode(t, there)
				if verb == "GC" {
					if err := n.GC(t.Context(), Collection{Network: "multi", Valid: noneValid}); err != nil {
						t.Fatal(err)
					}
				}
				for _, c := range formers {
					n.del(key(c, "eth0")) // after GC it has nothing to do
				}
				ran := make(map[string][]string)
				for _, call := range n.exec.Calls() {
					c := call.ContainerID
					ran[c] = append(ran[c], call.String())
					if want := map[bool]string{true: "/run/netns/" + c}[there]; call.NetNS != want {
						t.Errorf("%s of %s: netns %q", call, c, call.NetNS)
					}
					known := c != "planned" && (c != "died" || call.Plugin != "ipvlan")
					if got := stdin(t, call)["prevResult"] != nil; got != known {
						t.Errorf("%s of %s: %s", call, c, call.Stdin)
					}
				}
				three := []string{"DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0"}
				four := append([]string{"DEL ipvlan hot0"}, three...)
				want := map[string][]string{"added": three, "deleting": three, "planned": three, "died": four, "hotplugged": four, "leaving": four}
				if d := cmp.Diff(want, ran); d != "" {
					t.Errorf("calls (-want +got):\n%s", d)
				}
				n.wantNothing()
				if left, err := fs.Glob(os.DirFS(n.Dir), "[a-z]*"); err != nil || len(left) > 0 {
					t.Errorf("left: %q, %v", left, err)
				}
			})
		}
	}
}

// An ADD undoes what version 1 has left of one, and refuses what it has added, unless
// the namespace is gone.
func TestFormerRecordsAreAddedAgain(t *testing.T) {
	t.Parallel()
	for _, there := range []bool{true, false} {
		for c, calls := range map[string]int{"planned": 6, "deleting": 6, "added": 6, "hotplugged": 7, "died": 7, "leaving": 7} {
			t.Run(fmt.Sprintf("%s, namespace there: %v", c, there), func(t *testing.T) {
				t.Parallel()
				n, k := formerNode(t, there), key(c, "eth0")
				_, err := n.Add(t.Context(), k, pair(k))
				if there && c != "planned" && c != "deleting" {
					wantCode(t, err, 7)
					n.wantTrace()
					return
				}
				if err != nil || len(n.trace()) != calls {
					t.Errorf("%q, %v", n.trace(), err)
				}
			})
		}
	}
}
