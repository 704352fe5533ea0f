//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPeerFlags(t *testing.T) {
	t.Parallel()
	o, err := parse([]string{"-peer", "multus-4.2=/m", "-peer", "mine=/a,b,conf=/c,d"}, io.Discard)
	want := []peer{{name: "multus-4.2", path: "/m"}, {name: "mine", path: "/a,b", conf: "/c,d"}}
	if diff := cmp.Diff(want, o.peers, cmp.AllowUnexported(peer{})); diff != "" || err != nil {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
	for name, args := range map[string][]string{
		"without a path":  {"-peer", "multus"},
		"an empty path":   {"-peer", "multus=,conf=/c"},
		"no file name":    {"-peer", "../multus=/m"},
		"the same twice":  {"-peer", "multus=/m", "-peer", "multus=/n"},
		"more than lines": {"-peer", "a=/a", "-peer", "b=/b", "-peer", "c=/c", "-peer", "d=/d", "-peer", "e=/e"},
	} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestPeerThatCannotBeStarted: what is wrong with a peer is said before anything is
// measured.
func TestPeerThatCannotBeStarted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program, broken := filepath.Join(dir, "program"), filepath.Join(dir, "broken")
	for path, text := range map[string]string{program: "#!/bin/sh\n", broken: "{{.Delegates"} {
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		peer peer
		want string
	}{
		{peer{name: "multus", path: filepath.Join(dir, "none")}, "/none: no such file"},
		{peer{name: "mine", path: program}, "add ,conf=TEMPLATE"},
		{peer{name: "mine", path: program, conf: filepath.Join(dir, "none")}, "/none: no such file"},
		{peer{name: "mine", path: program, conf: broken}, "template: mine:1"},
		{peer{name: "multus-bin", path: program}, ""},
		{peer{name: "multus-bin", path: program}, "a program of that name"},
	} {
		if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o700); err != nil {
			t.Fatal(err)
		}
		err := tt.peer.bring(dir)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "-peer "+tt.peer.name)) {
			t.Errorf("%+v: %v, want %q", tt.peer, err, tt.want)
		}
	}
}

// TestPeersAreComparedWithoutStoppingTheOthers: each peer does the work in its own form
// of configuration. A peer that fails, that cannot do a part of the work or that does not
// answer is named with the reason, and the rest is measured.
func TestPeersAreComparedWithoutStoppingTheOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.growth, r.crowd, r.plot = nil, 0, r.file("cost.svg")
	if _, err := command(t.Context(), "../../..", "build", "-o", r.file("ours"), "./examples/flannel"); err != nil {
		t.Fatal(err)
	}
	script := func(name, text string) string {
		file := r.write(t, name, "#!/bin/sh\n"+text)
		if err := os.Chmod(file, 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
		return file
	}
	const version = `[ $CNI_COMMAND = VERSION ] && { echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}'; exit; }` + "\n"
	for _, p := range []peer{
		{name: "multus", path: r.file("bin", "libcni")}, // it reads "delegates" as Multus does
		{name: "flannel", path: r.file("ours")},
		{name: "fails", path: script("fails.sh", version+"echo '{\"code\": 7,\n \"msg\": \"no such luck\"}'; exit 1"), conf: r.write(t, "fails", `{"name": {{json .Name}}}`)},
		{name: "strange", path: script("strange.sh", version), conf: r.write(t, "strange", `{{.Name}}`)},
		{name: "no-version", path: script("no-version.sh", "echo hello"), conf: r.write(t, "no-version", `{}`)},
	} {
		r.peers = append(r.peers, p)
		if err := p.bring(r.work); err != nil {
			t.Fatal(err)
		}
	}
	out := capture(t, func(out, _ *os.File) error { return measure(t.Context(), r, out) })
	const cell, ratio, none = ` +[0-9.]+ \|`, ` +[0-9.]+ \([0-9.]+\) \|`, ` +– \|`
	for _, want := range []string{
		`(?m)^\| multus +\|` + cell + none + ratio + ratio + ratio + cell + cell + cell + `$`, // a program, with its memory
		`(?m)^\| flannel +\|.*` + cell + none + `$`,                                           // not that of two delegates
		`(?m)^\| delegates .*\| +multus \| +flannel \| +fails \| +strange \|$`,                // no-version is not there
		`(?m)^\| no-op +\| 1 +\| ADD +\|.*` + ratio + ratio + none + none + `$`,
		`(?m)^\| no-op +\| 2 +\| DEL +\|.*` + ratio + none + none + none + `$`, // flannel runs one delegate
		`(?m)^- flannel, several delegates: it runs only one delegate$`,
		`(?m)^- fails, no-op, N=2: fails ADD: exit status 1: .*"code": 7, "msg": "no such luck"`,
		`(?m)^- strange, no-op, N=1: its template does not make JSON: bench$`,
		`(?m)^- no-version, everything: no-version VERSION printed "hello`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
	picture, err := os.ReadFile(r.plot)
	if err != nil {
		t.Fatal(err)
	}
	if _, texts := elements(t, picture); !strings.Contains(strings.Join(texts, " "), "flannel") || strings.Contains(string(picture), "NaN") {
		t.Errorf("not the picture:\n%s", picture)
	}
}

// TestPeerThatHangsIsEnded: a peer without an answer is left out, but not when the user
// has interrupted the measurement.
func TestPeerThatHangsIsEnded(t *testing.T) {
	t.Parallel()
	form, err := parseForm("p", []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	p := contender{name: "p", form: form}
	var r rig
	ctx, cancel := context.WithCancel(t.Context())
	limited, end := p.limited(ctx)
	defer end()
	if _, ok := limited.Deadline(); !ok {
		t.Error("a peer has no limit")
	}
	unlimited, end := contender{}.limited(ctx)
	defer end()
	if _, ok := unlimited.Deadline(); ok {
		t.Error("multinet has a limit")
	}
	if err := r.leaveOut(ctx, p, "all", errors.New("ended")); err != nil || len(r.notes) != 1 {
		t.Errorf("%v, notes %q", err, r.notes)
	}
	if err := r.leaveOut(ctx, contender{}, "all", errors.New("ended")); err == nil {
		t.Error("multinet is left out")
	}
	cancel()
	if err := r.leaveOut(ctx, p, "all", errors.New("ended")); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

// TestKnownForms: the configurations of the known peers have the delegates as these
// plugins read them.
func TestKnownForms(t *testing.T) {
	t.Parallel()
	r := &rig{work: t.TempDir(), hosted: true}
	for name, want := range map[string]object{
		"multus": {
			"cniVersion": "1.0.0", "name": "bench", "type": "multus", "cniDir": r.file("peer-multus"), "binDir": r.file("bin"),
			"delegates": []any{object{
				"cniVersion": "1.0.0", "name": "net-0", "type": "bridge", "bridge": "br0", "isGateway": true,
				"ipam": object{"type": "host-local", "dataDir": r.file("leases"), "ranges": []any{[]any{object{"subnet": "10.0.0.0/16"}}}},
			}},
		},
		"flannel": {
			"cniVersion": "1.0.0", "name": "bench", "type": "flannel",
			"subnetFile": r.file("peer-flannel", "subnet.env"), "dataDir": r.file("peer-flannel", "state"),
			"delegate": object{"type": "bridge", "bridge": "br0", "isGateway": true},
			"ipam":     object{"dataDir": r.file("leases")},
		},
	} {
		text, err := peer{name: name}.text()
		if err != nil {
			t.Fatal(err)
		}
		c := contender{name: name, program: name, version: "1.0.0"}
		if c.form, err = parseForm(name, text); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(r.file("peer-"+name), 0o700); err != nil {
			t.Fatal(err)
		}
		path, err := r.stdin(c, bridge, 1)
		if err != nil {
			t.Fatal(err)
		}
		text, err = os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var got object
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestPictureHasRoomForPeers: the names of all contenders are inside the picture, and a
// contender without samples has no line.
func TestPictureHasRoomForPeers(t *testing.T) {
	t.Parallel()
	contenders := slices.Clone(ours)
	for i := range mostPeers {
		contenders = append(contenders, contender{name: fmt.Sprintf("a-peer-with-a-long-name-%d", i)})
	}
	if len(contenders) > len(strokes) {
		t.Fatalf("%d contenders, and %d colours", len(contenders), len(strokes))
	}
	add := make([][]sample, len(contenders))
	for i := range ours {
		add[i] = []sample{{wall: time.Millisecond}}
	}
	picture := draw(contenders, panels(contenders, []*task{{kind: noop, n: 1, add: add, del: add}}))
	names := 0
	for _, found := range regexp.MustCompile(`<text x="([0-9.]+)" y="[0-9.]+">([^<]+)<`).FindAllSubmatch(picture, -1) {
		x, err := strconv.ParseFloat(string(found[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		if end := x + 7*float64(len(found[2])); end > 2*(left+panelWidth+right) {
			t.Errorf("%s ends at %v", found[2], end)
		}
		names++
	}
	if dots := bytes.Count(picture, []byte("<circle")); names != len(contenders) || dots != 2*len(ours) {
		t.Errorf("%d names and %d dots in\n%s", names, dots, picture)
	}
}
