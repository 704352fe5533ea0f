package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

func TestMakeDir(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	hook, calls := trace()
	d, err := MakeDir(base+"/a/../b/c/", hook)
	nodetest.OK(t, err)
	defer d.Close()
	want := []string{
		"open .", "open .", "open .", // c, b, base
		"mkdirat b", "fsync .", "open .",
		"mkdirat c", "fsync .", "open .",
	}
	nodetest.Equal(t, "calls", *calls, want)
	info, err := os.Stat(filepath.Join(base, "b", "c"))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v; want 0700", info.Mode(), err)
	}
	again, err := MakeDir(base+"/b/c", nil)
	nodetest.OK(t, err)
	again.Close()
	write(t, filepath.Join(base, "file"), "")
	for _, path := range []string{base + "/file", base + "/file/d", ""} {
		if d, err := OpenDir(path, nil); err == nil {
			t.Errorf("opened %q: %v", path, d)
		}
	}
	if d, err := MakeDir(base+"/file/d/e", nil); err == nil {
		t.Errorf("made a directory in a file: %v", d)
	}
}

// MakeDir returns the error of each system call.
func TestMakeDirThatFails(t *testing.T) {
	t.Parallel()
	for at := range 9 {
		n := 0
		d, err := MakeDir(filepath.Join(t.TempDir(), "b", "c"), func(string, string) error {
			if n++; n > at {
				return unix.EIO
			}
			return nil
		})
		if d != nil || !errors.Is(err, unix.EIO) {
			t.Errorf("call %d fails: %v, %v", at+1, d, err)
		}
	}
}

// A call that a signal interrupts is repeated, and a directory that cannot be
// synced is no error. Other errors are returned.
func TestInterruptedCallsAndNothingToSync(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	interrupted := map[string]int{}
	d := open(t, dir, func(call, _ string) error {
		if interrupted[call]++; interrupted[call]%3 != 0 && call != "close" {
			return unix.EINTR
		}
		if call == "close" {
			return unix.EINTR // Linux has closed the file
		}
		return nil
	})
	nodetest.OK(t, d.WriteFile("f", []byte("new")))
	if data, err := d.ReadFile("f", 99); string(data) != "new" || err != nil {
		t.Errorf("%q, %v", data, err)
	}
	for errno, want := range map[unix.Errno]error{unix.EINVAL: nil, unix.EIO: unix.EIO} {
		d := open(t, dir, func(call, name string) error {
			if call == "fsync" && name == "." {
				return errno
			}
			return nil
		})
		if err := d.Sync(); !errors.Is(err, want) {
			t.Errorf("%v: %v", errno, err)
		}
		if err := d.WriteFile("f", nil); !errors.Is(err, want) {
			t.Errorf("%v: %v", errno, err)
		}
	}
	d = open(t, dir, func(call, name string) error {
		if call == "fsync" && name != "." {
			return unix.EINVAL
		}
		return nil
	})
	nodetest.Is(t, d.WriteFile("f", nil), unix.EINVAL)
}

func TestRemovedDirectory(t *testing.T) {
	t.Parallel()
	d := open(t, t.TempDir(), nil)
	nodetest.OK(t, os.Mkdir(d.Path("a"), 0o700))
	a := open(t, d.Path("a"), nil)
	nodetest.OK(t, a.WriteFile("f", nil))
	nodetest.Is(t, d.Rmdir("a"), fs.ErrExist)
	nodetest.OK(t, a.Remove("f"))
	nodetest.Is(t, a.Remove("f"), fs.ErrNotExist)
	nodetest.OK(t, d.Rmdir("a"))
	nodetest.Is(t, a.WriteFile("f", nil), fs.ErrNotExist)
	if _, err := d.Stat("a"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	nodetest.OK(t, d.Sync())
}
