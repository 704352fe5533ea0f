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
		"open .", "open .", "open .", "fstat .", // c, b, base
		"mkdirat b", "open .", "fstat .", "open ..", "fsync .", "fchmod .",
		"mkdirat c", "open .", "fstat .", "open ..", "fsync .", "fchmod .",
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

// If a system call fails, or was the last before a crash, MakeDir returns the
// error, and the next MakeDir that succeeds has synced every new directory.
func TestMakeDirSyncsWhatADeadCallMade(t *testing.T) {
	t.Parallel()
	for at := 1; ; at++ {
		base := t.TempDir()
		path := filepath.Join(base, "b", "c")
		made, synced := map[string]bool{}, map[string]bool{}
		follow := func(call, name string) {
			switch call {
			case "mkdirat":
				made[name] = true
			case "fsync": // of the parent of a directory with the sticky bit
				for name, path := range map[string]string{"b": filepath.Join(base, "b"), "c": path} {
					if info, err := os.Stat(path); err == nil && info.Mode()&fs.ModeSticky != 0 {
						synced[name] = true
					}
				}
			}
		}
		n := 0
		d, err := MakeDir(path, func(call, name string) error {
			if n++; n >= at {
				return unix.EIO
			}
			follow(call, name)
			return nil
		})
		if n >= at {
			if !errors.Is(err, unix.EIO) {
				t.Errorf("EIO from call %d on: %v", at, err)
			}
			d, err = MakeDir(path, func(call, name string) error { follow(call, name); return nil })
		}
		if err != nil {
			t.Fatal(err)
		}
		d.Close()
		if diff := cmp.Diff(map[string]bool{"b": true, "c": true}, synced); diff != "" || !made["b"] || !made["c"] {
			t.Errorf("stopped at call %d: made %v, synced %v", at, made, synced)
		}
		for _, p := range []string{filepath.Dir(path), path} {
			if info, err := os.Stat(p); err != nil || info.Mode() != fs.ModeDir|0o700 {
				t.Errorf("stopped at call %d: mode %v, %v", at, info.Mode(), err)
			}
		}
		if n < at {
			break
		}
	}
}

// MakeDir does not remove a sticky bit that the directory already had, and
// syncs nothing if the directory exists.
func TestMakeDirLeavesOtherModesAlone(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	for _, mode := range []fs.FileMode{0o700, 0o755, fs.ModeSticky | 0o777, fs.ModeSticky | 0o755} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		hook, calls := trace()
		d, err := MakeDir(path, hook)
		if err != nil {
			t.Fatal(err)
		}
		d.Close()
		if info, err := os.Stat(path); err != nil || info.Mode() != fs.ModeDir|mode {
			t.Errorf("mode %v, want %v", info.Mode(), mode)
		}
		if diff := cmp.Diff([]string{"open .", "fstat ."}, *calls); diff != "" {
			t.Error(diff)
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
