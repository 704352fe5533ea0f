package durable

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

func open(t *testing.T, path string, hook Hook) *Dir {
	t.Helper()
	d, err := OpenDir(path, hook)
	nodetest.OK(t, err)
	t.Cleanup(func() { d.Close() })
	return d
}

func write(t *testing.T, path, text string) {
	t.Helper()
	nodetest.OK(t, os.WriteFile(path, []byte(text), 0o600))
}

// entries lists dir as "name=content" or "name/".
func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	nodetest.OK(t, err)
	var all []string
	for _, e := range list {
		if !e.Type().IsRegular() {
			all = append(all, e.Name()+"/")
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		nodetest.OK(t, err)
		all = append(all, e.Name()+"="+string(data))
	}
	return all
}

// trace returns a hook that records the system calls, and where it records
// them.
func trace() (Hook, *[]string) {
	var calls []string
	return func(call, name string) error {
		if IsTemp(name) {
			name = TempPrefix
		}
		calls = append(calls, call+" "+name)
		return nil
	}, &calls
}

// fail returns a hook that lets a system call fail: "read", or "fsync ." of the directory.
func fail(what string, errno error) Hook {
	return func(call, name string) error {
		if what == call || what == call+" "+name {
			return errno
		}
		return nil
	}
}

// failAt returns a hook that lets the n-th system call fail.
func failAt(n int, errno error) Hook {
	return func(string, string) error {
		if n--; n == 0 {
			return errno
		}
		return nil
	}
}

// wantMode wants what is at path to have this mode, and to be no link.
func wantMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	nodetest.OK(t, err)
	nodetest.Equal(t, "mode", info.Mode(), want)
}

// The order is the guarantee: the data is on disk before the name, and the name
// before WriteFile returns.
func TestWriteFileSyncsFileThenDirectory(t *testing.T) {
	t.Parallel()
	hook, calls := trace()
	d := open(t, t.TempDir(), hook)
	*calls = nil
	nodetest.OK(t, d.WriteFile("f", []byte("new")))
	want := []string{"create .tmp-", "write .tmp-", "fsync .tmp-", "close .tmp-", "renameat .tmp-", "fsync ."}
	nodetest.Equal(t, "calls", *calls, want)
	wantMode(t, d.Path("f"), 0o600)
}

// A file has its mode, regardless of the umask, before it has its name. If the
// mode cannot be set, no temporary file is left.
func TestReplaceSetsTheModeFirst(t *testing.T) {
	t.Parallel()
	hook, calls := trace()
	fails := error(nil)
	d := open(t, t.TempDir(), func(call, name string) error {
		if call == "fchmod" {
			return errors.Join(hook(call, name), fails)
		}
		return hook(call, name)
	})
	*calls = nil
	nodetest.OK(t, d.Replace(".tmp-1", "f", []byte("new"), 0o666))
	want := []string{"create .tmp-", "fchmod .tmp-", "write .tmp-", "fsync .tmp-", "close .tmp-", "renameat .tmp-", "fsync ."}
	nodetest.Equal(t, "calls", *calls, want)
	wantMode(t, d.Path("f"), 0o666)
	fails = unix.EPERM
	nodetest.Is(t, d.Replace(".tmp-1", "f", []byte("newer"), 0o644), unix.EPERM)
	nodetest.Equal(t, "entries", entries(t, d.Path(".")), []string{"f=new"})
}

// If a system call fails, WriteFile leaves the old or the new content and
// returns the error. It leaves no temporary file unless removing it failed.
func TestWriteFileReportsEveryFailure(t *testing.T) {
	t.Parallel()
	for _, errno := range []unix.Errno{unix.ENOSPC, unix.EIO, unix.EROFS, unix.EACCES} {
		for at := 1; ; at++ {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "f"), "old")
			d := open(t, dir, failAt(at+1, errno))
			err := d.WriteFile("f", []byte("new"))
			if err == nil {
				break
			}
			got := entries(t, dir)
			if !errors.Is(err, errno) || len(got) != 1 || got[0] != "f=old" && got[0] != "f=new" {
				t.Errorf("%v at call %d: %v, %v", errno, at, got, err)
			}
			var p *fs.PathError
			if !errors.As(err, &p) || !strings.HasPrefix(p.Path, dir) {
				t.Errorf("%v does not contain the path", err)
			}
		}
	}
}

// A writer that was killed leaves one file, however often that happens. The next writer of the same
// file replaces it, and Tidy removes it. Neither touches the file of a writer that lives.
func TestOneTemporaryFileForEachFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := open(t, dir, nil)
	for _, name := range []string{"f", strings.Repeat("x", unix.NAME_MAX)} {
		var left string
		hooked := open(t, dir, func(call, name string) error {
			if IsTemp(name) && call == "fsync" {
				left = name
			}
			return nil
		})
		if err := hooked.WriteFile(name, []byte("old")); err != nil || left == "" {
			t.Errorf("%v, temporary file %q", err, left)
		}
		for what, make := range map[string]func(path string) error{
			"a dead writer's": func(path string) error { return os.WriteFile(path, []byte("half of something longer"), 0o600) },
			"one that others may read": func(path string) error {
				return errors.Join(os.WriteFile(path, []byte("half"), 0o644), os.Chmod(path, 0o644))
			},
			"another name of a file": func(path string) error { return os.Link(d.Path(name), path) },
		} {
			nodetest.OK(t, errors.Join(d.WriteFile(name, []byte("old")), make(d.Path(left)), d.WriteFile(name, []byte("new"))))
			nodetest.Equal(t, "entries after "+what, entries(t, dir), []string{name + "=new"})
			wantMode(t, d.Path(name), 0o600)
		}
		nodetest.OK(t, errors.Join(os.Symlink(name, d.Path(left)), d.WriteFile(name, []byte("newer"))))
		got, err := d.ReadFile(name, 100)
		nodetest.OK(t, err)
		nodetest.Equal(t, "written beside a link", string(got), "newer")
		nodetest.OK(t, errors.Join(d.Remove(left), d.Remove(name)))
	}
}

// Writers of one file do not disturb each other: a reader sees whole contents.
func TestWritersAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var wg sync.WaitGroup
	for i := range 8 {
		d := open(t, dir, nil)
		text := bytes.Repeat([]byte{byte('a' + i)}, 1000*(i+1))
		wg.Go(func() {
			for range 20 {
				if err := d.WriteFile("f", text); err != nil {
					t.Error(err)
				}
				got, err := d.ReadFile("f", 1<<20)
				if n := len(got); err != nil || n == 0 || n != 1000*(int(got[0]-'a')+1) || bytes.Count(got, got[:1]) != n {
					t.Errorf("%d bytes are read: %v", len(got), err)
				}
			}
		})
	}
	wg.Wait()
	nodetest.Equal(t, "files left", len(entries(t, dir)), 1)
}

// What a process leaves that dies in TryWrite is gone after the next one.
func TestTryWriteLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for at, done := 1, false; !done; at++ {
		n := 0
		d := open(t, dir, func(string, string) error {
			if n++; n == at+1 { // the first is of open
				runtime.Goexit()
			}
			return nil
		})
		dead := make(chan struct{})
		go func() {
			defer close(dead)
			if err := d.TryWrite(); err != nil {
				t.Error(err)
			}
			done = true
		}()
		<-dead
		nodetest.OK(t, open(t, dir, nil).TryWrite())
		nodetest.Equal(t, fmt.Sprint("left after a death at call ", at), entries(t, dir), nil)
	}
}

func TestAppend(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d, path := open(t, dir, nil), filepath.Join(dir, "f")
	appends := func(d *Dir, text string, limit int64, want bool, wantErr error) {
		t.Helper()
		ok, err := d.Append("f", []byte(text), limit)
		nodetest.Equal(t, "appended", ok, want)
		nodetest.Is(t, err, wantErr)
	}
	appends(d, "x", 9, false, fs.ErrNotExist)
	write(t, path, "old")
	appends(d, "+new", 7, true, nil) // at the limit
	appends(d, "+", 7, false, nil)   // over the limit
	nodetest.OK(t, os.Link(path, filepath.Join(dir, "g")))
	appends(d, "+", 99, false, nil) // with another link
	nodetest.Equal(t, "entries", entries(t, dir), []string{"f=old+new", "g=old+new"})
	nodetest.OK(t, os.Remove(filepath.Join(dir, "g")))
	for _, call := range []string{"openat", "fstat", "write", "close"} {
		appends(open(t, dir, fail(call, unix.EIO)), "+", 99, false, unix.EIO)
	}
}

// No method leaves the directory or hangs, whatever kind of file a name in it
// is.
func TestNoNameLeadsOutOfTheDirectory(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	write(t, filepath.Join(outside, "f"), "secret")
	for _, err := range []error{
		os.Symlink(filepath.Join(outside, "f"), filepath.Join(dir, "link")),
		os.Symlink(outside, filepath.Join(dir, "dirlink")),
		os.Symlink("sub", filepath.Join(dir, "inlink")),
		os.Mkdir(filepath.Join(dir, "sub"), 0o700),
		unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600),
		unix.Mknod(filepath.Join(dir, "sock"), unix.S_IFSOCK|0o600, 0),
	} {
		nodetest.OK(t, err)
	}
	d := open(t, dir, nil)
	for _, name := range []string{"link", "dirlink", "sub", "fifo", "sock"} {
		_, read := d.ReadFile(name, 99)
		_, appended := d.Append(name, []byte("x"), 99)
		_, _, lock := d.OpenLock(name)
		_, opened := d.OpenFile(name)
		for verb, err := range map[string]error{"read": read, "append": appended, "lock": lock, "open": opened} {
			if !errors.Is(err, ErrNotRegular) {
				t.Errorf("%s %s: %v", verb, name, err)
			}
		}
	}
	nodetest.OK(t, d.WriteFile("link", []byte("new")))
	if err := d.WriteFile("sub", []byte("new")); err == nil {
		t.Error("a directory was replaced by a file")
	}
	for _, name := range []string{"", ".", "..", "../f", "sub/f", "/etc/passwd", "a\x00b"} {
		for verb, err := range map[string]error{
			"write": d.WriteFile(name, nil), "remove": d.Remove(name), "rmdir": d.Rmdir(name),
			"rename": d.Rename("link", name), "from": d.Rename(name, "x"),
		} {
			if !errors.Is(err, unix.EINVAL) {
				t.Errorf("%s %q: %v", verb, name, err)
			}
		}
	}
	nodetest.Equal(t, "entries outside", entries(t, outside), []string{"f=secret"})
}

func TestReadFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := open(t, dir, nil)
	long := strings.Repeat("x", 100_000)
	write(t, filepath.Join(dir, "empty"), "")
	write(t, filepath.Join(dir, "long"), long)
	for name, want := range map[string]string{"empty": "", "long": long} {
		if got, err := d.ReadFile(name, int64(len(want))); err != nil || string(got) != want {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	_, err := d.ReadFile("long", 99_999)
	nodetest.Is(t, err, ErrTooLarge)
	_, err = d.ReadFile("none", 99)
	nodetest.Is(t, err, fs.ErrNotExist)
	_, err = open(t, dir, fail("read", unix.EIO)).ReadFile("long", 1<<20)
	nodetest.Is(t, err, unix.EIO)
}

// ReadFile of a file that grows returns its content up to some point.
func TestReadFileThatGrows(t *testing.T) {
	t.Parallel()
	for _, limit := range []int64{1000, 20} {
		dir := t.TempDir()
		path := filepath.Join(dir, "f")
		write(t, path, "0123456789")
		reads := 0
		d := open(t, dir, func(call, _ string) error {
			if call == "read" {
				if reads++; reads < 4 {
					f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
					if err != nil {
						return err
					}
					fmt.Fprint(f, "0123456789")
					return f.Close()
				}
			}
			return nil
		})
		data, err := d.ReadFile("f", limit)
		if limit == 20 {
			if !errors.Is(err, ErrTooLarge) {
				t.Errorf("%q, %v", data, err)
			}
		} else if err != nil || len(data) < 10 || !bytes.HasPrefix([]byte(strings.Repeat("0123456789", 9)), data) {
			t.Errorf("%q, %v", data, err)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := open(t, dir, nil)
	names, err := d.Names()
	nodetest.OK(t, err)
	nodetest.Equal(t, "names at first", names, nil)
	var want []string
	for i := range 1000 { // more than a buffer of names
		name := fmt.Sprintf("%0100d", 999-i)
		write(t, filepath.Join(dir, name), "")
		want = append(want, name)
	}
	slices.Sort(want)
	for range 2 { // the second listing starts from the beginning
		names, err = d.Names()
		nodetest.OK(t, err)
		nodetest.Equal(t, "names", names, want)
	}
	_, err = open(t, dir, fail("getdents", unix.EIO)).Names()
	nodetest.Is(t, err, unix.EIO)
}

// Whatever the name, WriteFile writes in its directory or not at all.
func FuzzWriteFileName(f *testing.F) {
	for _, name := range []string{"f", "", ".", "..", "../f", "/f", "a/b", "a\x00b", "\xff", "..."} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		above := t.TempDir()
		dir := filepath.Join(above, "dir")
		nodetest.OK(t, os.Mkdir(dir, 0o700))
		d := open(t, dir, nil)
		err := d.WriteFile(name, []byte("x"))
		names, nerr := d.Names()
		if nerr != nil || err == nil && (len(names) != 1 || names[0] != name) || err != nil && len(names) != 0 {
			t.Errorf("%q: %v; in the directory: %q, %v", name, err, names, nerr)
		}
		if list, err := os.ReadDir(above); err != nil || len(list) != 1 {
			t.Errorf("%q: above the directory: %v, %v", name, list, err)
		}
	})
}

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
	wantMode(t, filepath.Join(base, "b", "c"), 0o700|fs.ModeDir)
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
		d, err := MakeDir(filepath.Join(t.TempDir(), "b", "c"), failAt(at+1, unix.EIO))
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
	data, err := d.ReadFile("f", 99)
	nodetest.OK(t, err)
	nodetest.Equal(t, "data", string(data), "new")
	for errno, want := range map[unix.Errno]error{unix.EINVAL: nil, unix.EIO: unix.EIO} {
		d := open(t, dir, fail("fsync .", errno))
		nodetest.Is(t, d.Sync(), want)
		nodetest.Is(t, d.WriteFile("f", nil), want)
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
	_, err := d.Stat("a")
	nodetest.Is(t, err, fs.ErrNotExist)
	nodetest.OK(t, d.Sync())
}
