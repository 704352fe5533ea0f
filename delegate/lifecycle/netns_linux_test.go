package lifecycle

import (
	"errors"
	"os"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// Namespaces are looked at where plugins find them: in the root, and by no
// link that leads out of it.
func TestNetNSIsLookedAtInRoot(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		atAdd  string
		change func(t *testing.T, path, other string)
		want   string
	}{
		"as at ADD":           {"/run/netns/c1", nil, "/run/netns/c1"},
		"by an absolute link": {"/var/run/netns/c1", nil, "/var/run/netns/c1"},
		"reused":              {"/run/netns/c1", reuse, ""},
		"gone":                {"/run/netns/c1", remove, ""},
		"not in the root":     {"/out/c1", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.Root = t.TempDir()
			n.machine = &fileMachine{root: n.Root}
			outside := t.TempDir()
			err := errors.Join(
				os.MkdirAll(n.Root+"/run/netns", 0o700), os.Mkdir(n.Root+"/var", 0o700),
				os.Symlink("/run", n.Root+"/var/run"), os.Symlink(outside, n.Root+"/out"),
			)
			nodetest.OK(t, err)
			write(t, n.Root+"/run/netns/c1")
			write(t, outside+"/c1")
			a := attachment(nodetest.Network("blue", "bridge"), "c1", "eth0")
			a.NetNS = tt.atAdd
			n.mustAdd(eth0, Transaction{Plan: Plan(a)})
			if tt.change != nil {
				tt.change(t, n.Root+"/run/netns/c1", "")
			}
			nodetest.OK(t, n.Del(t.Context(), eth0, Removal{}))
			if add, del := n.Last("ADD").NetNS, n.Last("DEL").NetNS; add != tt.atAdd || del != tt.want {
				t.Errorf("ADD was given netns %q, DEL %q, want %q", add, del, tt.want)
			}
			n.wantNothing()
		})
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
	if err != nil || len(names) != len(here) {
		t.Errorf("in the root: %q, %v; without: %q", names, err, here)
	}
	for _, tt := range []struct{ root, path string }{
		{"", ""},
		{"", "/absent"},
		{"", "/proc/self/ns/uts"},
		{"", "/proc/self/status"},
		{"/proc", ""},
		{"/proc", "/proc/self/ns/net"},
		{"/proc", "/absent"},
		{"/proc", "/self/ns/uts"},
		{"/proc", "/self/status"},
	} {
		if names, err := namesIn(tt.root, tt.path); err != nil || len(names) > 0 {
			t.Errorf("%q in %q: %q, %v", tt.path, tt.root, names, err)
		}
	}
	if _, err := namesIn("/proc", "/self/exe"); os.Geteuid() == 0 && err == nil {
		t.Error("a link out of the root was followed")
	}
}
