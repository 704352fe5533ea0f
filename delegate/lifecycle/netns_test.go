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
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/scratch"
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
	nodetest.OK(t, n.Check(t.Context(), eth0, ""))
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
		"another path of the same":       {path, linkTwo, other, other},
		"reused, given":                  {path, reuse, path, none},
		"reused, not given":              {path, reuse, none, none},
		"gone, given":                    {path, remove, path, none},
		"gone, not given":                {path, remove, none, none},
		"another namespace given":        {path, elseNS, other, path},
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

func linkTwo(t *testing.T, path, other string) {
	t.Helper()
	nodetest.OK(t, os.Link(path, other))
}

func replace(t *testing.T, path, other string) {
	t.Helper()
	write(t, other)
	remove(t, path, other)
}

func elseNS(t *testing.T, _, other string) {
	t.Helper()
	write(t, other)
}

func write(t testing.TB, path string) {
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

// A namespace is the recorded one if its device and inode are, and its number, if the record has
// one. Numbers of two kinds are compared only in one boot.
func TestSameNamespace(t *testing.T) {
	t.Parallel()
	const boot = "b1"
	id := netns{Path: "/a", Dev: 1, Inode: 2, Number: "id/5", Boot: boot}
	of := func(dev, inode uint64, number string) netns {
		return netns{Path: "/b", Dev: dev, Inode: inode, Number: number}
	}
	for name, tt := range map[string]struct {
		n, now netns
		want   likeness
	}{
		"the same":                           {id, of(1, 2, "id/5"), same},
		"another device":                     {id, of(9, 2, "id/5"), different},
		"another inode":                      {id, of(1, 9, "id/5"), different},
		"another number":                     {id, of(1, 2, "id/6"), different},
		"its number cannot be read":          {id, of(1, 2, ""), unsure},
		"no number is recorded":              {of(1, 2, ""), of(1, 2, "id/5"), same},
		"no number, another inode":           {of(1, 2, ""), of(1, 3, "id/5"), different},
		"no number, another device":          {of(7, 2, ""), of(1, 3, "id/5"), unsure},
		"nothing is there":                   {id, netns{Path: "/a"}, unsure},
		"nothing was there":                  {netns{Path: "/a"}, id, unsure},
		"the same in another boot":           {netns{Dev: 1, Inode: 2, Number: "id/5", Boot: "b0"}, of(1, 2, "id/5"), different},
		"the inode in another boot":          {netns{Dev: 1, Inode: 2, Boot: "b0"}, of(1, 2, ""), different},
		"a cookie in this boot":              {netns{Dev: 1, Inode: 2, Number: "cookie/5", Boot: boot}, of(1, 2, "id/5"), same},
		"another cookie in this boot":        {netns{Dev: 1, Inode: 2, Number: "cookie/6", Boot: boot}, of(1, 2, "id/5"), different},
		"a cookie in an unknown boot":        {netns{Dev: 1, Inode: 2, Number: "cookie/6"}, of(1, 2, "id/5"), unsure},
		"of an earlier release":              {netns{Dev: 1, Inode: 2, Unique: boot + "/id/5"}, of(1, 2, "id/5"), same},
		"of an earlier release, masked boot": {netns{Dev: 1, Inode: 2, Unique: "masked/id/5"}, of(1, 2, "id/5"), same},
	} {
		if got := tt.n.compare(tt.now, boot); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// The records of a container are found by its namespace, whatever its ID or path.
func TestRecordsAreFoundByTheNamespace(t *testing.T) {
	t.Parallel()
	n, netns, other := newNode(t), newNetNS(t), newNetNS(t)
	n.addIn(eth0, netns)
	n.addIn(key("c2", "eth0"), other)
	linked := filepath.Join(t.TempDir(), "link")
	linkTwo(t, netns, linked)
	for path, want := range map[string][]string{netns: {"c1"}, linked: {"c1"}, other: {"c2"}, filepath.Dir(netns): nil, "": nil} {
		rs, err := n.InNetNS(t.Context(), path)
		nodetest.OK(t, err)
		var got []string
		for _, r := range rs {
			got = append(got, r.Key.ContainerID)
		}
		nodetest.Equal(t, path, got, want)
	}
	n.damage(eth0)
	if rs, err := n.InNetNS(t.Context(), other); len(rs) != 1 || !errors.Is(err, scratch.ErrCorrupt) {
		t.Errorf("%d records, %v", len(rs), err)
	}
}

// More is attached only to a container in the namespace that the caller names.
func TestAttachIsForTheNamespaceOfTheContainer(t *testing.T) {
	t.Parallel()
	n, netns, other := newNode(t), newNetNS(t), newNetNS(t)
	n.addIn(eth0, netns)
	linked := filepath.Join(t.TempDir(), "link")
	linkTwo(t, netns, linked)
	for path, code := range map[string]uint{other: 8, "/no-such-directory/c1": 8, linked: 0} {
		tr := hotplug(eth0)
		tr.NetNS, tr.Plan = path, inNetNS(tr.Plan, netns)
		_, err := n.Attach(t.Context(), eth0, tr)
		nodetest.Code(t, err, code)
	}
	n.wantRecords("c1/eth0 added")
	n.del(eth0)
}
