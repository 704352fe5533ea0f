package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/nodetest"
)

// DEL and CHECK send what ADD sent, to the byte, whatever the configuration
// has become.
func TestDelAndCheckReplayAdd(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	conf := `{"cniVersion":"1.1.0","name":"blue","plugins":[{"type":"bridge","big":9007199254740993,"f":1.50,"s":"<&>é","nested":{"z":[1e3,{"a":null}]},"capabilities":{"portMappings":true}}]}`
	a := delegate.Attachment{
		Network: nodetest.Parse(conf), ContainerID: "c1", IfName: "eth0", Args: "A=1;B=<x>", NetNS: filepath.Join(t.TempDir(), "ns"),
		CapabilityArgs: map[string]json.RawMessage{"portMappings": json.RawMessage(`[{"hostPort":8080.0}]`), "undeclared": json.RawMessage(`1`)},
	}
	write(t, a.NetNS)
	n.mustAdd(eth0, Transaction{Plan: Plan(a)})
	nodetest.OK(t, n.Check(t.Context(), eth0))
	n.del(eth0)
	add := n.Last("ADD")
	var want map[string]json.RawMessage
	nodetest.OK(t, json.Unmarshal(add.Stdin, &want))
	if string(want["big"]) != "9007199254740993" || string(want["f"]) != "1.50" {
		t.Errorf("ADD was sent %s", add.Stdin)
	}
	for _, verb := range []string{"CHECK", "DEL"} {
		c := n.Last(verb)
		var got map[string]json.RawMessage
		nodetest.OK(t, json.Unmarshal(c.Stdin, &got))
		if got["prevResult"] == nil {
			t.Errorf("%s without prevResult", verb)
		}
		delete(got, "prevResult")
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-ADD +%s):\n%s", verb, verb, d)
		}
		if c.NetNS != add.NetNS || c.IfName != add.IfName || c.Args != add.Args || c.ContainerID != add.ContainerID {
			t.Errorf("%s: %+v, ADD: %+v", verb, c, add)
		}
	}
	n.wantNothing()
}

// A path that has become another's namespace is not handed to a plugin. A path
// with a new inode is what a new container's looks like.
func TestDelUsesANamespaceOnlyIfItIsTheRecordedOne(t *testing.T) {
	t.Parallel()
	const path, other, none = "ns", "other", ""
	for name, tt := range map[string]struct {
		atAdd  string
		change func(t *testing.T, path, other string)
		given  string
		want   string
	}{
		"as at ADD":                      {path, nil, path, path},
		"none given":                     {path, nil, none, path},
		"another path of the same":       {path, link, other, other},
		"reused, given":                  {path, reuse, path, none},
		"reused, not given":              {path, reuse, none, none},
		"gone, given":                    {path, remove, path, none},
		"gone, not given":                {path, remove, none, none},
		"another namespace given":        {path, another, other, path},
		"nothing at the path given":      {path, nil, other, path},
		"gone, another namespace given":  {path, replace, other, none},
		"not there at ADD, given at DEL": {other, nil, other, other},
		"not there at ADD, not given":    {other, nil, none, none},
		"none at ADD, given at DEL":      {none, nil, path, path},
		"none at ADD, not given":         {none, nil, none, none},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			in := pathsIn(t.TempDir())
			write(t, in(path))
			a := attachment(nodetest.Network("blue", "bridge"), "c1", "eth0")
			a.NetNS = in(tt.atAdd)
			n.mustAdd(eth0, Transaction{Plan: Plan(a)})
			if tt.change != nil {
				tt.change(t, in(path), in(other))
			}
			nodetest.OK(t, n.Del(t.Context(), eth0, Removal{NetNS: in(tt.given)}))
			if got, want := n.Last("DEL").NetNS, in(tt.want); got != want {
				t.Errorf("DEL was given netns %q, want %q", got, want)
			}
			n.wantNothing()
		})
	}
}

// A record knows whether the namespaces of its attachments are gone.
func TestNetNSGone(t *testing.T) {
	t.Parallel()
	const path, other, none = "ns", "other", ""
	for name, tt := range map[string]struct {
		first, second string // of the two attachments
		change        func(t *testing.T, path, other string)
		want          bool
	}{
		"as at ADD":                    {path, path, nil, false},
		"removed":                      {path, path, remove, true},
		"another's by now":             {path, path, reuse, true},
		"not there at ADD, nor now":    {other, other, nil, true},
		"not there at ADD, but now":    {other, other, another, false},
		"one there, one not":           {path, other, nil, false},
		"both gone":                    {path, other, remove, true},
		"none":                         {none, none, nil, false},
		"one gone, one without a path": {path, none, remove, false},
		"cannot be looked at":          {"ns/x", "ns/x", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			in := pathsIn(t.TempDir())
			write(t, in(path))
			as := []delegate.Attachment{attachment(nodetest.Network("blue", "bridge"), "c1", "eth0"), attachment(nodetest.Network("red", "macvlan"), "c1", "net1")}
			as[0].NetNS, as[1].NetNS = in(tt.first), in(tt.second)
			n.mustAdd(eth0, Transaction{Plan: Plan(as...)})
			if tt.change != nil {
				tt.change(t, in(path), in(other))
			}
			for r, err := range n.Records(t.Context()) {
				if got := r.NetNSGone(); got != tt.want || err != nil {
					t.Errorf("gone: %v, want %v; %v", got, tt.want, err)
				}
			}
			n.del(eth0)
			n.wantNothing()
		})
	}
	if (Record{}).NetNSGone() {
		t.Error("what has no attachments has no namespace to lose")
	}
}

// pathsIn returns a function that puts a path in dir. An empty path stays empty.
func pathsIn(dir string) func(path string) string {
	return func(path string) string {
		if path == "" {
			return ""
		}
		return filepath.Join(dir, path)
	}
}

func reuse(t *testing.T, path, _ string) {
	t.Helper()
	write(t, path+".new") // beside it, so that it is not the same inode again
	nodetest.OK(t, os.Rename(path+".new", path))
}

func remove(t *testing.T, path, _ string) {
	t.Helper()
	nodetest.OK(t, os.Remove(path))
}

func link(t *testing.T, path, other string) {
	t.Helper()
	nodetest.OK(t, os.Link(path, other))
}

func replace(t *testing.T, path, other string) {
	t.Helper()
	write(t, other)
	remove(t, path, other)
}

func another(t *testing.T, _, other string) {
	t.Helper()
	write(t, other)
}

func write(t *testing.T, path string) {
	t.Helper()
	nodetest.OK(t, os.WriteFile(path, nil, 0o600))
}

// A netns that runtime and record agree on is not needed for ADD on what a
// crash left, either: the undo has the recorded one.
func TestNetNSOfAnUndoneLeftover(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	ns := filepath.Join(t.TempDir(), "ns")
	write(t, ns)
	a := attachment(nodetest.Network("blue", "bridge"), "c1", "eth0")
	a.NetNS = ns
	n.FailOn("DEL", 101)
	_, err := n.Add(t.Context(), eth0, Transaction{Plan: Plan(a), Report: func(context.Context, []delegate.Attached) error { return errors.New("no") }})
	nodetest.Code(t, err, 999)
	n.Exec.Plugins = plugins()
	n.mustAdd(eth0, Transaction{Plan: Plan(a)})
	if got := n.Last("DEL").NetNS; got != ns {
		t.Errorf("netns %q", got)
	}
	n.del(eth0)
	n.wantNothing()
}

// A namespace is the recorded one if its device and inode are, and its number,
// where the record has one: the kernel gives the inode of one that has gone to
// the next.
func TestSameNamespace(t *testing.T) {
	t.Parallel()
	recorded := netns{Path: "/a", Dev: 1, Inode: 2, Unique: "x"}
	old := netns{Path: "/a", Dev: 1, Inode: 2}
	for name, tt := range map[string]struct {
		n, now netns
		want   bool
	}{
		"the same":               {recorded, recorded, true},
		"at another path":        {recorded, netns{Path: "/b", Dev: 1, Inode: 2, Unique: "x"}, true},
		"another device":         {recorded, netns{Dev: 9, Inode: 2, Unique: "x"}, false},
		"another inode":          {recorded, netns{Dev: 1, Inode: 9, Unique: "x"}, false},
		"another number":         {recorded, netns{Dev: 1, Inode: 2, Unique: "y"}, false},
		"no number any more":     {recorded, netns{Dev: 1, Inode: 2}, false},
		"none recorded":          {old, recorded, true},
		"none recorded, another": {old, netns{Dev: 1, Inode: 9, Unique: "x"}, false},
		"not there":              {recorded, netns{Path: "/a"}, false},
	} {
		if got := tt.n.same(tt.now); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
