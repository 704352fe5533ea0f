package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/flock"
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
			if err := plant(d.Path(spareName(sparePrefix, "f", i))); err != nil {
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

// A lock's file is kept for the next lock, whatever name that has.
func TestLocksAreKept(t *testing.T) {
	t.Parallel()
	d := open(t, t.TempDir(), nil)
	a := openLock(t, d, "a")
	if err := d.RetireLock(a.fd, a.id, "a", 0o400); err != nil {
		t.Fatal(err)
	}
	a.close()
	b := openLock(t, d, "b")
	if b.id != a.id {
		t.Error("another file")
	}
	info, err := d.Stat("b")
	if names, nerr := d.Names(); err != nil || nerr != nil || info.Mode != 0o400 || len(names) != 1 {
		t.Errorf("mode %o of %q: %v, %v", info.Mode, names, err, nerr)
	}
	if another := openLock(t, d, "b"); another.lock(t) {
		t.Error("two hold the lock")
	}
	if b.close(); !openLock(t, d, "b").lock(t) {
		t.Error("nobody holds the lock, and it is not free")
	}
}

// A kept file whose lock a child still has is not used: its name would be locked.
func TestKeptLockThatAChildHolds(t *testing.T) {
	t.Parallel()
	d := open(t, t.TempDir(), nil)
	a := openLock(t, d, "a")
	if !a.lock(t) || d.RetireLock(a.fd, a.id, "a", 0o400) != nil {
		t.Fatal("not kept")
	}
	child, err := unix.Dup(a.fd)
	if err != nil {
		t.Fatal(err)
	}
	a.close()
	if b := openLock(t, d, "b"); b.id == a.id || !b.lock(t) {
		t.Error("waits for the child of another")
	}
	_ = unix.Close(child)
	if c := openLock(t, d, "c"); c.id != a.id {
		t.Error("the file is free, and not used")
	}
}

// If a kept file gets another name, and its name another file, before its lock is
// taken, neither is used.
func TestKeptLockThatIsTakenMeanwhile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plain := open(t, dir, nil)
	child := openLock(t, plain, "a")
	if !child.lock(t) {
		t.Fatal("not free")
	}
	spare := plain.Path(spareName(lockPrefix, "c", 0))
	write(t, spare, "")
	if err := os.Chmod(spare, 0o400); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	d := open(t, dir, func(call, name string) (err error) {
		if call == "fstat" && strings.HasPrefix(name, lockPrefix) {
			once.Do(func() { err = errors.Join(os.Rename(spare, plain.Path("b")), os.Rename(plain.Path("a"), spare)) })
		}
		return err
	})
	c := openLock(t, d, "c")
	if info, err := d.Stat("c"); err != nil || info.ID != c.id || c.id == child.id || !c.lock(t) {
		t.Errorf("%v, or not a file of its own", err)
	}
}

// RetireLock keeps nothing that is not the holder's alone, and no more than it
// should.
func TestRetireLockKeepsFewFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(d *Dir) error
		left  []string
	}{
		"written to": {func(d *Dir) error { return os.Truncate(d.Path("a"), 1) }, nil},
		"linked":     {func(d *Dir) error { return os.Link(d.Path("a"), d.Path("twin")) }, []string{"twin"}},
		"another's name": {
			func(d *Dir) error {
				return errors.Join(os.Rename(d.Path("a"), d.Path("b")), os.WriteFile(d.Path("a"), nil, 0o600))
			},
			[]string{"a", "b"},
		},
		"gone": {func(d *Dir) error { return os.Remove(d.Path("a")) }, nil},
	} {
		d := open(t, t.TempDir(), nil)
		a := openLock(t, d, "a")
		if err := c.spoil(d); err != nil {
			t.Fatal(err)
		}
		if err := d.RetireLock(a.fd, a.id, "a", 0o400); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		names, err := d.Names()
		if diff := cmp.Diff(c.left, names); diff != "" || err != nil {
			t.Errorf("%s: %s%v", name, diff, err)
		}
	}
	d := open(t, t.TempDir(), nil)
	var locks []openedLock
	for i := range 2 * spares {
		locks = append(locks, openLock(t, d, fmt.Sprint("a", i)))
	}
	for i, l := range locks {
		if err := d.RetireLock(l.fd, l.id, fmt.Sprint("a", i), 0o400); err != nil {
			t.Error(err)
		}
	}
	if names, err := d.Names(); len(names) != spares || err != nil {
		t.Errorf("%q, %v", names, err)
	}
}

// OpenLock takes no file that somebody else planted, and none where the file
// system may replace another lock's file.
func TestOpenLockTakesOnlyFilesOfItsOwn(t *testing.T) {
	t.Parallel()
	for name, plant := range map[string]func(path string) error{
		"link":     func(p string) error { return os.Symlink("elsewhere", p) },
		"dir":      func(p string) error { return os.Mkdir(p, 0o400) },
		"fifo":     func(p string) error { return unix.Mkfifo(p, 0o400) },
		"writable": func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"text":     func(p string) error { return os.WriteFile(p, []byte("text"), 0o400) },
		"hardlink": func(p string) error {
			return errors.Join(os.WriteFile(p, nil, 0o400), os.Link(p, p+"-twin"))
		},
		"cannot be moved": func(p string) error { return os.WriteFile(p, nil, 0o400) },
	} {
		d := open(t, t.TempDir(), func(call, _ string) error {
			if call == "renameat2" && name == "cannot be moved" {
				return unix.EINVAL
			}
			return nil
		})
		for i := range spares {
			if err := plant(d.Path(spareName(lockPrefix, "a", i))); err != nil {
				t.Fatal(err)
			}
		}
		before, _ := d.Names()
		openLock(t, d, "a")
		after, err := d.Names()
		if diff := cmp.Diff(append(before, "a"), after); diff != "" || err != nil {
			t.Errorf("%s: %s%v", name, diff, err)
		}
	}
}

type openedLock struct {
	fd    int
	id    ID
	close func()
}

func openLock(t *testing.T, d *Dir, name string) openedLock {
	t.Helper()
	fd, id, err := d.OpenLock(name, 0o400)
	if err != nil {
		t.Fatal(err)
	}
	l := openedLock{fd, id, sync.OnceFunc(func() { _ = unix.Close(fd) })}
	t.Cleanup(l.close)
	return l
}

func (l openedLock) lock(t *testing.T) bool {
	t.Helper()
	free, err := flock.Try(l.fd, true)
	if err != nil {
		t.Fatal(err)
	}
	return free
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
