package inroot_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/metacni/metacni/internal/inroot"
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
	if err != nil {
		t.Fatal(err)
	}
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

// Paths are those of the root, and no link leads out of it (G12).
func TestG12With(t *testing.T) {
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
	if err := inroot.With(root, "/run", func(string) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("what the callback says is lost: %v", err)
	}
}

// A namespace of a process is a link that no path inside a root can be made
// of; it leads nowhere else all the same.
func TestNamespaceOfAProcess(t *testing.T) {
	t.Parallel()
	want, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
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
// process changes (S22, D48).
func TestS22RootsSideBySide(t *testing.T) {
	t.Parallel()
	one, _ := jail(t, "one")
	two, _ := jail(t, "two")
	before, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == filepath.Join(one, "run/netns/c1") {
			t.Errorf("%s is still open", to)
		}
	}
}
