package lifecycle

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
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
			for r, err := range n.Records(t.Context()) {
				if gone := r.NetNSGone(); err != nil || gone != (tt.want == "") {
					t.Errorf("gone: %v, %v", gone, err)
				}
				if r.root += "/absent"; r.NetNSGone() {
					t.Error("gone, as far as one sees without a root")
				}
			}
			nodetest.OK(t, n.Del(t.Context(), eth0, Removal{}))
			if add, del := n.Last("ADD").NetNS, n.Last("DEL").NetNS; add != tt.atAdd || del != tt.want {
				t.Errorf("ADD was given netns %q, DEL %q, want %q", add, del, tt.want)
			}
			n.wantNothing()
		})
	}
}

// A container whose namespace is there has not gone because this process cannot
// tell the namespace's number: it would be detached while it runs. A DEL does
// not name the namespace either then, which may be another container's.
func TestNamespaceOfUnknownNumberIsNotGone(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/c1"
	write(t, path) // no namespace, so nobody can tell its number
	now := identify("", path)
	for unique, wantPath := range map[string]string{"": path, "boot/id/1": ""} {
		recorded := now
		recorded.Unique = unique
		r := Record{entries: []entry{{NetNS: recorded}}}
		if r.NetNSGone() {
			t.Errorf("recorded with number %q: gone", unique)
		}
		if got := recorded.forDel(looking(""), path); got != wantPath {
			t.Errorf("recorded with number %q: DEL is given %q, want %q", unique, got, wantPath)
		}
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

// What is at a namespace's path and cannot be looked at, may be it.
func TestNetNSThatCannotBeLookedAtIsNotGone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ns")
	write(t, path)
	n := identify("", path)
	remove(t, path, "")
	if !n.gone("", looking("")) {
		t.Error("what is not there is there")
	}
	if err := syscall.Mknod(path, syscall.S_IFSOCK|0o600, 0); err != nil { // which cannot be opened
		t.Fatal(err)
	}
	if n.gone("", looking("")) {
		t.Error("gone")
	}
	if got := n.forDel(looking(""), path); got != "" { // but nobody is sent there
		t.Errorf("DEL is given %q", got)
	}
}

// A namespace that this process may just not see is not gone, whatever the kernel
// it was recorded under could tell of it: its container would be detached while
// it runs.
func TestNamespaceOutOfSightIsNotGone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir+"/file")
	file := identify("", dir+"/file")
	for _, unique := range []string{"", bootID() + "/id/1"} {
		for name, tt := range map[string]struct {
			n    netns
			root string
			want bool
		}{
			"a directory that is not there":     {netns{Path: dir + "/absent/c1", Dev: 4, Inode: 7}, "", false},
			"something else than a namespace":   {netns{Path: dir + "/file", Dev: file.Dev + 1, Inode: 7}, "", false},
			"another one of the same kind":      {netns{Path: dir + "/file", Dev: file.Dev, Inode: file.Inode + 1}, "", true},
			"a directory without it":            {netns{Path: dir + "/c1", Dev: 4, Inode: 7}, "", true},
			"a process, where none are seen":    {netns{Path: "/proc/4242/ns/net", Dev: 4, Inode: 7}, dir, false},
			"a process, where all are seen":     {netns{Path: "/proc/4194305/ns/net", Dev: 4, Inode: 7}, "", seesProcesses("")},
			"before the machine was started up": {netns{Path: dir + "/absent/c1", Dev: 4, Inode: 7, Unique: "boot/id/1"}, "", true},
		} {
			if tt.n.Unique == "" {
				tt.n.Unique = unique
			}
			if got := tt.n.gone(tt.root, looking(tt.root)); got != tt.want {
				t.Errorf("%s, with number %q: gone %v, want %v", name, tt.n.Unique, got, tt.want)
			}
		}
	}
}
