package inroot_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/metacni/metacni/internal/inroot"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// jail is a root directory with files, and links that point out of it.
func jail(t *testing.T, text string) (root, outside string) {
	t.Helper()
	root, outside = t.TempDir(), t.TempDir()
	err := errors.Join(
		os.MkdirAll(root+"/run/netns", 0o700), os.MkdirAll(root+"/var", 0o700), os.WriteFile(root+"/run/netns/c1", []byte(text), 0o600),
		os.WriteFile(outside+"/c1", []byte("outside"), 0o600),
		os.Symlink("/run", root+"/var/run"), // as on many hosts
		os.Symlink(outside, root+"/out"), os.Symlink(outside+"/c1", root+"/file"),
		os.Symlink("../../../../../../../../.."+outside, root+"/up"),
		os.Symlink("/proc/self/root", root+"/proc"), os.Symlink("loop", root+"/loop"),
	)
	nodetest.OK(t, err)
	return root, outside
}

func read(root, path string) (text string, err error) {
	err = inroot.With(root, path, func(path string) error {
		data, err := os.ReadFile(path)
		text = string(data)
		return err
	})
	return text, err
}

// Paths are those of the root, and no link leads out of it.
func TestNoLinkLeadsOutOfTheRoot(t *testing.T) {
	t.Parallel()
	root, outside := jail(t, "inside")
	for _, path := range []string{
		"/run/netns/c1", "/var/run/netns/c1", "/../../run/netns/c1", "run/netns/c1", "/run//netns/../netns/./c1",
	} {
		if text, err := read(root, path); text != "inside" || err != nil {
			t.Errorf("%s: %q, %v", path, text, err)
		}
	}
	for _, path := range []string{
		"/out/c1", "/file", "/up/c1", outside + "/c1", "/.." + outside + "/c1", "/proc" + outside + "/c1", "/loop", "/loop/net", "", "/run/netns/c1/x", "a\x00b",
	} {
		text, err := read(root, path)
		var e *fs.PathError
		if text != "" || !errors.As(err, &e) || e.Path != path {
			t.Errorf("%q: %q, %v", path, text, err)
		}
	}
	if _, err := read("/does/not/exist", "/run/netns/c1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no root: %v", err)
	}
	if _, err := read(root, "/absent"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing there: %v", err)
	}
	if text, err := read("", root+"/run/netns/c1"); text != "inside" || err != nil {
		t.Errorf("without a root: %q, %v", text, err)
	}
	broken := errors.New("broken")
	nodetest.Is(t, inroot.With(root, "/run", func(string) error { return broken }), broken)
}

// A namespace of a process is a link that no path inside a root can be made
// of; it leads nowhere else all the same.
func TestNamespaceOfAProcess(t *testing.T) {
	t.Parallel()
	want, err := os.Stat("/proc/self/ns/net")
	nodetest.OK(t, err)
	for _, root := range []string{"/", "/proc"} {
		path := fmt.Sprintf("/proc/%d/ns/net", os.Getpid())
		if root == "/proc" {
			path = "/self/ns/net"
		}
		err := inroot.With(root, path, func(path string) error {
			got, err := os.Stat(path)
			if err == nil && !os.SameFile(got, want) {
				err = errors.New("another file")
			}
			return err
		})
		if err != nil {
			t.Errorf("%s in %s: %v", path, root, err)
		}
	}
	for _, path := range []string{"/proc/self/exe", "/proc/self/cwd", "/proc/self/root", "/proc/self/root/etc", "/proc/self/fd/0"} {
		if err := inroot.With("/", path, func(string) error { return nil }); err == nil {
			t.Errorf("%s was followed", path)
		}
	}
}

// A link that the kernel does not follow inside a root is followed only where
// the kernel itself makes links: in a proc file system.
func TestLinkToANamespaceIsNotFollowed(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := errors.Join(
		os.Symlink("proc", root+"/proc"), // never ends, so that the kernel gives up
		os.Symlink("/proc/self/ns/net", root+"/escape"),
	); err != nil {
		t.Fatal(err)
	}
	err := inroot.With(root, "/escape", func(path string) error {
		to, err := os.Readlink(path)
		t.Errorf("it led to %s: %v", to, err)
		return nil
	})
	var e *fs.PathError
	if !errors.As(err, &e) {
		t.Errorf("err = %v", err)
	}
}

// Any number of roots side by side; nothing is left open, and nothing of the
// process changes.
func TestRootsSideBySide(t *testing.T) {
	t.Parallel()
	one, _ := jail(t, "one")
	two, _ := jail(t, "two")
	before, err := os.Getwd()
	nodetest.OK(t, err)
	var wg sync.WaitGroup
	for i := range 50 {
		root, want := one, "one"
		if i%2 == 1 {
			root, want = two, "two"
		}
		wg.Go(func() {
			if text, err := read(root, "/var/run/netns/c1"); text != want || err != nil {
				t.Errorf("%s: %q, %v", want, text, err)
			}
		})
	}
	wg.Wait()
	if after, err := os.Getwd(); after != before || err != nil {
		t.Errorf("the working directory was %s and is %s: %v", before, after, err)
	}
	fds, err := filepath.Glob("/proc/self/fd/*")
	nodetest.OK(t, err)
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == filepath.Join(one, "run/netns/c1") {
			t.Errorf("%s is still open", to)
		}
	}
}

// A resolved path is inside the root, wherever links point and whether or not
// there is anything yet: what is made there is found by the same path in the
// root, and outside nothing is made.
func TestResolvedPathIsInsideTheRoot(t *testing.T) {
	t.Parallel()
	root, outside := jail(t, "inside")
	if err := errors.Join(
		os.Symlink("/data/cni", root+"/var/lib"), // dangles, in the root and out of it
		os.Symlink("../../../../../../../../../../../.."+outside+"/new", root+"/var/relative"),
		os.Symlink(outside+"/new", root+"/var/absolute"),
		os.Symlink("lib", root+"/var/again"),
	); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/run/netns":               "/run/netns",
		"/var/run/netns/":          "/run/netns",
		"run//./netns/../x":        "/run/x",
		"/../../run":               "/run",
		"/":                        "/",
		"":                         "/",
		"/absent/a/b":              "/absent/a/b",
		"/var/lib/queue":           "/data/cni/queue",
		"/var/again/queue":         "/data/cni/queue",
		"/var/relative/queue":      outside + "/new/queue",
		"/var/absolute/queue":      outside + "/new/queue",
		"/up/c1":                   outside + "/c1",
		"/run/netns/c1/no/dir":     "/run/netns/c1/no/dir",
		outside + "/../x":          filepath.Dir(outside) + "/x",
		"/var/absolute/../sibling": outside + "/sibling",
	} {
		got, err := inroot.Resolve(root, path)
		if err != nil || got != filepath.Join(root, want) {
			t.Errorf("%q: %q, %v; want %q in the root", path, got, err, want)
		}
	}
	made, err := inroot.Resolve(root, "/var/absolute/queue")
	nodetest.OK(t, errors.Join(err, os.MkdirAll(made, 0o700), os.WriteFile(made+"/entry", []byte("made"), 0o600)))
	if text, err := read(root, "/var/absolute/queue/entry"); text != "made" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := os.Lstat(outside + "/new"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("made outside: %v", err)
	}
	var e *fs.PathError
	for _, path := range []string{"/loop/x", "/proc/x"} {
		if got, err := inroot.Resolve(root, path); !errors.As(err, &e) || e.Path != path {
			t.Errorf("a loop: %q, %v", got, err)
		}
	}
	if got, err := inroot.Resolve("", "/a/../b"); got != "/a/../b" || err != nil {
		t.Errorf("without a root: %q, %v", got, err)
	}
}

// A directory in a root is read as one of os.DirFS, and no link in it leads out
// of the root.
func TestDirInRoot(t *testing.T) {
	t.Parallel()
	root, outside := jail(t, "inside")
	if err := errors.Join(
		os.Symlink(outside+"/c1", root+"/run/netns/out"), os.Symlink("/run/netns/c1", root+"/run/netns/in"),
		os.Mkdir(root+"/run/netns/sub", 0o700), os.WriteFile(root+"/run/netns/sub/f", []byte("deep"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for _, d := range []fs.FS{inroot.Dir{Root: root, Path: "/var/run/netns"}, inroot.Dir{Path: root + "/run/netns"}} {
		for name, want := range map[string]string{"c1": "inside", "sub/f": "deep"} {
			if data, err := fs.ReadFile(d, name); string(data) != want || err != nil {
				t.Errorf("%v: %s: %q, %v", d, name, data, err)
			}
		}
		entries, err := fs.ReadDir(d, ".")
		if err != nil || len(entries) != 4 {
			t.Errorf("%v: %v, %v", d, entries, err)
		}
		if info, err := fs.Stat(d, "sub"); err != nil || !info.IsDir() {
			t.Errorf("%v: sub: %v, %v", d, info, err)
		}
		for _, name := range []string{"absent", "sub/absent"} {
			if _, err := fs.ReadFile(d, name); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%v: %s: %v", d, name, err)
			}
		}
		for _, name := range []string{"../c1", "/c1", ""} {
			if _, err := d.Open(name); !errors.Is(err, fs.ErrInvalid) {
				t.Errorf("%v: %q: %v", d, name, err)
			}
		}
	}
	d := inroot.Dir{Root: root, Path: "/run/netns"}
	if data, err := fs.ReadFile(d, "in"); string(data) != "inside" || err != nil {
		t.Errorf("a link inside: %q, %v", data, err)
	}
	if data, err := fs.ReadFile(d, "out"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a link out: %q, %v", data, err)
	}
}

// A FIFO has no writer for ever, and does not keep whoever opens it.
func TestOpeningAFIFODoesNotWait(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	nodetest.OK(t, syscall.Mkfifo(root+"/fifo", 0o600))
	for _, d := range []inroot.Dir{{Root: root, Path: "/"}, {Path: root}} {
		f, err := d.Open("fifo")
		nodetest.OK(t, err)
		_ = f.Close()
	}
}
