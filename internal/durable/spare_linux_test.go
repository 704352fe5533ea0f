package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// recycle writes text into a kept file, if there is one, and reports whether
// there was.
func recycle(d *Dir, name, text string) error {
	return d.Recycle(name, func(reused bool) []byte {
		if reused {
			return []byte("reused " + text)
		}
		return []byte(text)
	})
}

func inode(t *testing.T, path string) ID {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return IDOf(&st)
}

// A recycled file contains nothing of its old content.
func TestRecycleOverwritesAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := open(t, dir, nil)
	secret := strings.Repeat("secret\n", 1000)
	if err := recycle(d, "a", secret); err != nil {
		t.Fatal(err)
	}
	id := inode(t, d.Path("a"))
	if err := d.Retire("a"); err != nil {
		t.Fatal(err)
	}
	if names, err := d.Names(); len(names) != 1 || err != nil || !strings.HasPrefix(names[0], sparePrefix) {
		t.Fatal(names, err)
	}
	if err := recycle(d, "b", "new"); err != nil {
		t.Fatal(err)
	}
	want := "b=reused new" + strings.Repeat("\n", len(secret)-len("reused new"))
	if diff := cmp.Diff([]string{want}, entries(t, dir)); diff != "" {
		t.Error(diff)
	}
	if inode(t, d.Path("b")) != id {
		t.Error("the file was not recycled")
	}
	if err := recycle(d, "c", "another"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{want, "c=another"}, entries(t, dir)); diff != "" {
		t.Error(diff)
	}
	if err := d.Retire("none"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// Retire keeps a limited number of files, and none that is large, that others
// can read, or that has another name.
func TestRetireKeepsFewFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := open(t, dir, nil)
	for name, f := range map[string]func(path string) error{
		"large":    func(p string) error { return os.Truncate(p, maxSpare+1) },
		"readable": func(p string) error { return os.Chmod(p, 0o644) },
		"linked":   func(p string) error { return os.Link(p, filepath.Join(t.TempDir(), "twin")) },
		"link":     func(p string) error { return errors.Join(os.Remove(p), os.Symlink("x", p)) },
		"fifo":     func(p string) error { return errors.Join(os.Remove(p), unix.Mkfifo(p, 0o600)) },
	} {
		write(t, d.Path(name), "x")
		if err := f(d.Path(name)); err != nil {
			t.Fatal(err)
		}
		if err := d.Retire(name); err != nil {
			t.Error(err)
		}
		if names, err := d.Names(); len(names) != 0 || err != nil {
			t.Errorf("%s is kept as %q, %v", name, names, err)
		}
	}
	for i := range 2 * spares {
		name := fmt.Sprint("f", i)
		write(t, d.Path(name), "x")
		if err := d.Retire(name); err != nil {
			t.Error(err)
		}
		if names, err := d.Names(); len(names) != min(i+1, spares) || err != nil {
			t.Errorf("%d retired: %q, %v", i+1, names, err)
		}
	}
	if err := os.Mkdir(d.Path("dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.Retire("dir"); err == nil {
		t.Error("a directory was removed")
	}
}

// Recycle does not write to a file that somebody else planted under a spare
// file's name.
func TestRecycleTakesOnlyFilesOfItsOwn(t *testing.T) {
	t.Parallel()
	outside := filepath.Join(t.TempDir(), "outside")
	for name, plant := range map[string]func(path string) error{
		"link":     func(p string) error { return os.Symlink(outside, p) },
		"hardlink": func(p string) error { return os.Link(outside, p) },
		"dir":      func(p string) error { return os.Mkdir(p, 0o600) },
		"fifo":     func(p string) error { return unix.Mkfifo(p, 0o600) },
		"readable": func(p string) error { return os.WriteFile(p, []byte("planted"), 0o644) },
	} {
		write(t, outside, "precious")
		d := open(t, t.TempDir(), nil)
		for i := range spares {
			if err := plant(d.Path(spareName("f", i))); err != nil {
				t.Fatal(err)
			}
		}
		if err := recycle(d, "f", "text"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if data, _, err := d.ReadFile("f", 99); string(data) != "text" || err != nil {
			t.Errorf("%s: %q, %v", name, data, err)
		}
		if data, err := os.ReadFile(outside); string(data) != "precious" || err != nil {
			t.Errorf("%s: outside is %q, %v", name, data, err)
		}
	}
}

// Recycle that stops before any of its calls, or in which one fails, leaves the
// old or the new content. Retire leaves the old content or no file.
func TestRecycleAndRetireAtEveryCall(t *testing.T) {
	t.Parallel()
	for _, crash := range []bool{false, true} {
		for _, verb := range []string{"recycle", "retire"} {
			for at := 1; ; at++ {
				dir := t.TempDir()
				write(t, filepath.Join(dir, "f"), "old")
				write(t, filepath.Join(dir, sparePrefix+"3"), "of another, and longer than what is new")
				write(t, filepath.Join(dir, TempPrefix+"f"), "left by a crash")
				n := 0
				d := open(t, dir, func(call, name string) error {
					if n++; n-1 == at || crash && n-1 > at { // the first call opens dir
						if crash && call == "write" {
							write(t, filepath.Join(dir, name), "reus")
						}
						return unix.EIO
					}
					return nil
				})
				err := error(nil)
				want := []string{"old", "reused new"}
				if verb == "retire" {
					want[1] = ""
					err = d.Retire("f")
				} else {
					err = recycle(d, "f", "new")
				}
				data, rerr := os.ReadFile(filepath.Join(dir, "f"))
				got := strings.TrimRight(string(data), "\n")
				if got != want[0] && got != want[1] || rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
					t.Errorf("%s, call %d: %q, %v", verb, at, got, rerr)
				}
				if err == nil && got != want[1] {
					t.Errorf("%s, call %d: nil, but the content is %q", verb, at, got)
				}
				if n-1 < at {
					break
				}
			}
		}
	}
}

// If the file system cannot move a file without replacing another, the name is
// checked first.
func TestMoveWithoutRenameat2(t *testing.T) {
	t.Parallel()
	for _, errno := range []unix.Errno{unix.EINVAL, unix.ENOSYS} {
		dir := t.TempDir()
		d := open(t, dir, func(call, _ string) error {
			if call == "renameat2" {
				return errno
			}
			return nil
		})
		write(t, d.Path("a"), "a")
		write(t, d.Path("b"), "b")
		if err := d.Move(d, "a", "b"); !errors.Is(err, fs.ErrExist) {
			t.Error(err)
		}
		if err := d.Move(d, "a", "c"); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]string{"b=b", "c=a"}, entries(t, dir)); diff != "" {
			t.Error(diff)
		}
	}
}
