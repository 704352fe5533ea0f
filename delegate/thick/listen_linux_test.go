package thick

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/nodetest"
)

func listenOn(t *testing.T, socket string) *Listener {
	t.Helper()
	l, err := Listen(t.Context(), socket)
	nodetest.OK(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// mode returns the kind and the permissions of what is at path.
func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Lstat(path)
	nodetest.OK(t, err)
	return info.Mode()
}

// The directory is made when it is missing, for this user alone, and what is in
// it is not touched when it is there.
func TestDirectoryOfTheSocketIsMadeAndNotEmptied(t *testing.T) {
	t.Parallel()
	base := socketDir(t)
	socket := base + "/a/b/s"
	nodetest.OK(t, listenOn(t, socket).Close())
	for _, dir := range []string{base + "/a", base + "/a/b"} {
		if m := mode(t, dir); m != fs.ModeDir|0o700 {
			t.Errorf("%s: %v", dir, m)
		}
	}
	other := base + "/a/b/other"
	nodetest.OK(t, os.WriteFile(other, []byte("x"), 0o644))
	nodetest.OK(t, os.Mkdir(base+"/a/b/dir", 0o755))
	nodetest.OK(t, listenOn(t, socket).Close())
	if data, err := os.ReadFile(other); string(data) != "x" || err != nil || mode(t, base+"/a/b/dir") != fs.ModeDir|0o755 {
		t.Errorf("%q, %v", data, err)
	}
	if m := mode(t, base); m.Perm() != 0o700 {
		t.Errorf("the directory above: %v", m)
	}
}

// A directory that others can enter, or that is not what it seems, is an error
// that says so, and stays as it is.
func TestDirectoryOfTheSocketIsChecked(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, want string
		make       func(t *testing.T, dir string) error
	}{
		{"group may write", "mode is 0720", func(_ *testing.T, dir string) error { return os.Chmod(dir, 0o720) }},
		{"all may enter", "mode is 0701", func(_ *testing.T, dir string) error { return os.Chmod(dir, 0o701) }},
		{"sticky and open", "mode is 01777", func(_ *testing.T, dir string) error { return os.Chmod(dir, 0o777|fs.ModeSticky) }},
		{"another user's", "belongs to user 12345", func(t *testing.T, dir string) error {
			t.Helper()
			if os.Geteuid() != 0 {
				t.Skip("needs root")
			}
			return os.Chown(dir, 12345, -1)
		}},
		{"symbolic link", "is a symbolic link", func(_ *testing.T, dir string) error {
			return errors.Join(os.Rename(dir, dir+"real"), os.Symlink(dir+"real", dir))
		}},
		{"dangling link", "is a symbolic link", func(_ *testing.T, dir string) error {
			return errors.Join(os.Remove(dir), os.Symlink(dir+"none", dir))
		}},
		{"file", "is not a directory", func(_ *testing.T, dir string) error {
			return errors.Join(os.Remove(dir), os.WriteFile(dir, nil, 0o600))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(socketDir(t), "dir")
			nodetest.OK(t, os.Mkdir(dir, 0o700))
			nodetest.OK(t, tt.make(t, dir))
			before := mode(t, dir)
			l, err := Listen(t.Context(), dir+"/s")
			if l != nil || err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), dir) {
				t.Errorf("%v, %v; want %s", l, err, tt.want)
			}
			if mode(t, dir) != before {
				t.Errorf("changed to %v", mode(t, dir))
			}
			if list, _ := os.ReadDir(dir); len(list) != 0 {
				t.Errorf("made %v", list)
			}
		})
	}
}

// Nobody else can connect at any time: the socket has its name only once it has
// its mode.
func TestSocketIsPrivateFromTheStart(t *testing.T) {
	t.Parallel()
	socket := socketDir(t) + "/s"
	l := listenOn(t, socket)
	if m := mode(t, socket); m != fs.ModeSocket|0o600 {
		t.Errorf("mode %v", m)
	}
	if a := l.Addr(); a.Network() != "unix" || a.String() != socket {
		t.Errorf("address %v", a)
	}
	if _, err := os.Lstat(socket + "~"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the temporary name: %v", err)
	}
	go func() { _ = serveEcho(l) }()
	nodetest.OK(t, echo(socket))
	nodetest.OK(t, l.Close())
	nodetest.OK(t, l.Close())
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after close: %v", err)
	}
}

// What a daemon that died has left is replaced.
func TestStaleSocketIsReplaced(t *testing.T) {
	t.Parallel()
	socket := socketDir(t) + "/s"
	for _, path := range []string{socket, socket + "~"} {
		old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		nodetest.OK(t, err)
		old.SetUnlinkOnClose(false)
		nodetest.OK(t, old.Close())
	}
	if err := echo(socket); !errors.Is(err, unix.ECONNREFUSED) {
		t.Fatal(err)
	}
	l := listenOn(t, socket)
	go func() { _ = serveEcho(l) }()
	nodetest.OK(t, echo(socket))
}

// What is no socket is not ours to remove.
func TestListenReplacesOnlySockets(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "~"} {
		for what, make := range map[string]func(path string) error{
			"file":      func(p string) error { return os.WriteFile(p, []byte("x"), 0o600) },
			"directory": func(p string) error { return os.Mkdir(p, 0o700) },
			"link":      func(p string) error { return os.Symlink("/dev/null", p) },
			"pipe":      func(p string) error { return unix.Mkfifo(p, 0o600) },
		} {
			socket := socketDir(t) + "/s"
			nodetest.OK(t, make(socket+name))
			before := mode(t, socket+name)
			l, err := Listen(t.Context(), socket)
			if l != nil || err == nil || !strings.Contains(err.Error(), socket+name+" exists and is not a socket") {
				t.Errorf("%s: %v, %v", what, l, err)
			}
			if mode(t, socket+name) != before {
				t.Errorf("%s: now %v", what, mode(t, socket+name))
			}
			nodetest.OK(t, os.Remove(socket+name))
			nodetest.OK(t, listenOn(t, socket).Close()) // the locks have been let go
		}
	}
}

// A lock that is no file is an error, not something to wait for.
func TestLockMustBeAFile(t *testing.T) {
	t.Parallel()
	for _, name := range []string{".lock", ".next"} {
		for what, make := range map[string]func(path string) error{
			"directory": func(p string) error { return os.Mkdir(p, 0o700) },
			"link":      func(p string) error { return os.Symlink("/dev/null", p) },
		} {
			socket := socketDir(t) + "/s"
			nodetest.OK(t, make(socket+name))
			if l, err := Listen(t.Context(), socket); l != nil || err == nil || !strings.Contains(err.Error(), socket+name) {
				t.Errorf("%s %s: %v, %v", name, what, l, err)
			}
		}
	}
}

func TestListenRefusesPathsThatCannotBeSockets(t *testing.T) {
	t.Parallel()
	dir := socketDir(t)
	fits := dir + "/" + strings.Repeat("x", 106-len(dir)-1)
	nodetest.OK(t, listenOn(t, fits).Close())
	for path, want := range map[string]string{
		fits + "x":                           "has 107 bytes, but at most 106 are",
		dir + "/" + strings.Repeat("x", 300): "bytes, but at most 106 are",
		"":                                   "not a path",
		"@abstract":                          "not a path",
	} {
		if l, err := Listen(t.Context(), path); l != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", path, l, err)
		}
	}
}
