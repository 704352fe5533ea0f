package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestMakeDir(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	hook, calls := trace()
	d, err := MakeDir(base+"/a/../b/c/", hook)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	want := []string{
		"open .", "open .", "open .", // c, b, base
		"mkdirat b", "fsync .", "open .",
		"mkdirat c", "fsync .", "open .",
	}
	if diff := cmp.Diff(want, *calls); diff != "" {
		t.Error(diff)
	}
	info, err := os.Stat(filepath.Join(base, "b", "c"))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v; want 0700", info.Mode(), err)
	}
	again, err := MakeDir(base+"/b/c", nil)
	if err != nil {
		t.Fatal(err)
	}
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
	if err := d.WriteFile("f", []byte("new")); err != nil {
		t.Error(err)
	}
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
	if err := d.WriteFile("f", nil); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a file that cannot be synced: %v", err)
	}
}

func TestRemovedDirectory(t *testing.T) {
	t.Parallel()
	d := open(t, t.TempDir(), nil)
	if err := os.Mkdir(d.Path("a"), 0o700); err != nil {
		t.Fatal(err)
	}
	a := open(t, d.Path("a"), nil)
	if err := a.WriteFile("f", nil); err != nil {
		t.Fatal(err)
	}
	if err := d.Rmdir("a"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("not empty: %v", err)
	}
	if err := a.Remove("f"); err != nil {
		t.Error(err)
	}
	if err := a.Remove("f"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := d.Rmdir("a"); err != nil {
		t.Error(err)
	}
	if err := a.WriteFile("f", nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a removed directory: %v", err)
	}
	if _, err := d.Stat("a"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := d.Sync(); err != nil {
		t.Error(err)
	}
}
