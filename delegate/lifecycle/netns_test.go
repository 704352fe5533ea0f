package lifecycle

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/scratch"
)

// DEL and CHECK send what ADD sent, to the byte, whatever the configuration
// has become.
func TestDelAndCheckReplayAdd(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := delegate.Attachment{
		Network:     nodetest.Parse(`{"cniVersion":"1.1.0","name":"blue","plugins":[{"type":"bridge","big":9007199254740993,"f":1.50,"s":"<&>é","nested":{"z":[1e3,{"a":null}]},"capabilities":{"portMappings":true}}]}`),
		ContainerID: "c1", IfName: "eth0", Args: "A=1;B=<x>", NetNS: newNetNS(t),
		CapabilityArgs: map[string]json.RawMessage{"portMappings": json.RawMessage(`[{"hostPort":8080.0}]`), "undeclared": json.RawMessage(`1`)},
	}
	n.mustAdd(eth0, Transaction{Plan: Plan(a)})
	nodetest.OK(t, n.Check(t.Context(), eth0, ""))
	n.del(eth0)
	add := n.Last("ADD")
	keys := func(c delegatetest.Call) (keys map[string]json.RawMessage) {
		nodetest.OK(t, json.Unmarshal(c.Stdin, &keys))
		return keys
	}
	if want := keys(add); string(want["big"]) != "9007199254740993" || string(want["f"]) != "1.50" {
		t.Errorf("ADD was sent %s", add.Stdin)
	}
	for _, verb := range []string{"CHECK", "DEL"} {
		c := n.Last(verb)
		got := keys(c)
		nodetest.Equal(t, verb+" has the result", got["prevResult"] != nil, true)
		delete(got, "prevResult")
		nodetest.Equal(t, verb+" is sent", got, keys(add))
		nodetest.Equal(t, verb, []string{c.NetNS, c.IfName, c.Args, c.ContainerID}, []string{add.NetNS, add.IfName, add.Args, add.ContainerID})
	}
	n.wantNothing()
}

// A path that has become another's namespace is not handed to a plugin. A path
// with a new inode is what a new container's looks like. Namespaces are looked at where plugins
// find them: in the root, and by no link that leads out of it.
func TestDelUsesANamespaceOnlyIfItIsTheRecordedOne(t *testing.T) {
	t.Parallel()
	const path, other, none = "/run/ns", "/run/other", ""
	reuse := func(path, _ string) error { // beside it, so that it is not the same inode again
		return errors.Join(os.WriteFile(path+".new", nil, 0o600), os.Rename(path+".new", path))
	}
	remove := func(path, _ string) error { return os.Remove(path) }
	another := func(_, other string) error { return os.WriteFile(other, nil, 0o600) }
	for name, tt := range map[string]struct {
		atAdd  string
		change func(path, other string) error
		given  string
		want   string
	}{
		"as at ADD":                      {path, nil, path, path},
		"none given":                     {path, nil, none, path},
		"another path of the same":       {path, os.Link, other, other},
		"by a link in the root":          {"/var/run/ns", nil, none, "/var/run/ns"},
		"reused, given":                  {path, reuse, path, none},
		"reused, not given":              {path, reuse, none, none},
		"gone, given":                    {path, remove, path, none},
		"another namespace given":        {path, another, other, path},
		"nothing at the path given":      {path, nil, other, path},
		"gone, another namespace given":  {path, func(path, other string) error { return errors.Join(remove(path, ""), another("", other)) }, other, none},
		"not there at ADD, given at DEL": {other, nil, other, other},
		"not there at ADD, not given":    {other, nil, none, none},
		"out of the root":                {"/out/ns", nil, none, none},
		"none at ADD, given at DEL":      {none, nil, path, path},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			root, outside := t.TempDir(), t.TempDir()
			n.Root, n.machine = root, &fileMachine{root: root}
			nodetest.OK(t, errors.Join(
				os.MkdirAll(root+"/run", 0o700), os.Mkdir(root+"/var", 0o700), os.Symlink("/run", root+"/var/run"), os.Symlink(outside, root+"/out"),
			))
			write(t, root+path)
			write(t, outside+"/ns")
			n.mustAdd(eth0, Transaction{Plan: Plan(in(tt.atAdd, attachment(nodetest.Network("blue", "bridge"), "c1", "eth0")))})
			if tt.change != nil {
				nodetest.OK(t, tt.change(root+path, root+other))
			}
			nodetest.OK(t, n.Del(t.Context(), eth0, Removal{NetNS: tt.given}))
			nodetest.Equal(t, "ADD was given", n.Last("ADD").NetNS, tt.atAdd)
			nodetest.Equal(t, "DEL was given", n.Last("DEL").NetNS, tt.want)
			n.wantNothing()
		})
	}
}

func write(t testing.TB, path string) {
	t.Helper()
	nodetest.OK(t, os.WriteFile(path, nil, 0o600))
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
		"another device":              {id, of(9, 2, "id/5"), different},
		"another inode":               {id, of(1, 9, "id/5"), different},
		"another number":              {id, of(1, 2, "id/6"), different},
		"its number cannot be read":   {id, of(1, 2, ""), unsure},
		"no number is recorded":       {of(1, 2, ""), of(1, 2, "id/5"), same},
		"no number, another inode":    {of(1, 2, ""), of(1, 3, "id/5"), different},
		"no number, another device":   {of(7, 2, ""), of(1, 3, "id/5"), unsure},
		"nothing is there":            {id, netns{Path: "/a"}, unsure},
		"nothing was there":           {netns{Path: "/a"}, id, unsure},
		"the same in another boot":    {netns{Dev: 1, Inode: 2, Number: "id/5", Boot: "b0"}, of(1, 2, "id/5"), different},
		"the inode in another boot":   {netns{Dev: 1, Inode: 2, Boot: "b0"}, of(1, 2, ""), different},
		"a cookie in this boot":       {netns{Dev: 1, Inode: 2, Number: "cookie/5", Boot: boot}, of(1, 2, "id/5"), same},
		"another cookie in this boot": {netns{Dev: 1, Inode: 2, Number: "cookie/6", Boot: boot}, of(1, 2, "id/5"), different},
		"a cookie in an unknown boot": {netns{Dev: 1, Inode: 2, Number: "cookie/6"}, of(1, 2, "id/5"), unsure},
		"of an earlier release":       {netns{Dev: 1, Inode: 2, Unique: "masked/id/5"}, of(1, 2, "id/5"), same},
	} {
		nodetest.Equal(t, name, tt.n.compare(tt.now, boot), tt.want)
	}
}

// The records of a container are found by its namespace, whatever its ID or path.
func TestRecordsAreFoundByTheNamespace(t *testing.T) {
	t.Parallel()
	n, netns, other := newNode(t), newNetNS(t), newNetNS(t)
	n.addIn(eth0, netns)
	n.addIn(key("c2", "eth0"), other)
	linked := n.Path("link")
	nodetest.OK(t, os.Link(netns, linked))
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
	rs, err := n.InNetNS(t.Context(), other)
	nodetest.Is(t, err, scratch.ErrCorrupt)
	nodetest.Equal(t, "records", len(rs), 1)
}

// More is attached only to a container in the namespace that the caller names.
func TestAttachIsForTheNamespaceOfTheContainer(t *testing.T) {
	t.Parallel()
	n, netns, linked := newNode(t), newNetNS(t), filepath.Join(t.TempDir(), "link")
	n.addIn(eth0, netns)
	nodetest.OK(t, os.Link(netns, linked))
	for path, code := range map[string]uint{newNetNS(t): 8, "/no-such-directory/c1": 8, linked: 0} {
		tr := hotplug(eth0)
		tr.NetNS, tr.Plan = path, inNetNS(tr.Plan, netns)
		_, err := n.Attach(t.Context(), eth0, tr)
		nodetest.Code(t, err, code)
	}
}

// The names in use are those of the namespace at the path in the root. What is
// no namespace has no names, and is for the plugins to complain about.
func TestNamesInUseInRoot(t *testing.T) {
	t.Parallel()
	here, err := namesIn("", "/proc/self/ns/net")
	if err != nil || os.Geteuid() == 0 && len(here) == 0 {
		t.Fatalf("%q, %v", here, err)
	}
	names, err := namesIn("/proc", "/self/ns/net")
	nodetest.OK(t, err)
	nodetest.Equal(t, "names in the root", len(names), len(here))
	for _, tt := range []struct{ root, path string }{
		{"", ""}, {"", "/absent"}, {"", "/proc/self/ns/uts"}, {"", "/proc/self/status"},
		{"/proc", ""}, {"/proc", "/proc/self/ns/net"}, {"/proc", "/self/ns/uts"},
	} {
		names, err := namesIn(tt.root, tt.path)
		nodetest.OK(t, err)
		nodetest.Equal(t, tt.path+" in "+tt.root, names, nil)
	}
	if _, err := namesIn("/proc", "/self/exe"); os.Geteuid() == 0 && err == nil {
		t.Error("a link out of the root was followed")
	}
}
