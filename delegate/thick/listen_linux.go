package thick

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/flock"
)

// A listener has the socket and its locks.
type listener struct {
	socket string
	unix   *net.UnixListener
	info   fs.FileInfo // of the socket's file, to recognise it

	mu     sync.Mutex // guards the following
	lock   *os.File   // nil once released
	ending bool       // no more connections can be made
	closed bool
}

func listen(ctx context.Context, socket string) (*listener, error) {
	if socket == "" || socket[0] == '@' {
		return nil, errors.New("not a path")
	}
	temp := socket + "~"
	if most := len(unix.RawSockaddrUnix{}.Path) - 1; len(temp) > most {
		return nil, fmt.Errorf("the path has %d bytes, but at most %d are possible", len(socket), most-1)
	}
	if err := makePrivate(filepath.Dir(socket)); err != nil {
		return nil, err
	}
	// Held until the socket is ours, so that its owner sees that we wait.
	next, err := lockFile(ctx, socket+".next")
	if err != nil {
		return nil, err
	}
	defer unlockFile(next)
	lock, err := lockFile(ctx, socket+".lock")
	if err != nil {
		return nil, err
	}
	l := &listener{socket: socket, lock: lock}
	if err := l.bind(temp); err != nil {
		unlockFile(lock)
		return nil, err
	}
	return l, nil
}

// bind listens on temp, sets its mode and renames it to the socket. The lock is
// held.
func (l *listener) bind(temp string) (err error) {
	if err := l.unused(); err != nil {
		return err
	}
	for _, path := range []string{l.socket, temp} {
		switch info, err := os.Lstat(path); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		case info.Mode().Type() != fs.ModeSocket:
			return fmt.Errorf("%s exists and is not a socket", path)
		}
	}
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // left by a process that died
	}
	l.unix, err = net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return err
	}
	// Otherwise closing would remove the socket, even if it is another's by then.
	l.unix.SetUnlinkOnClose(false)
	err = os.Chmod(temp, 0o600)
	if err == nil {
		l.info, err = os.Lstat(temp)
	}
	if err == nil {
		// If this fails, the next daemon cannot take over while this one drains.
		_, _ = l.lock.WriteAt([]byte(identity(l.info)), 0)
		err = os.Rename(temp, l.socket)
	}
	if err != nil {
		_ = os.Remove(temp) // the first error says more
		_ = l.unix.Close()
	}
	return err
}

// unused returns an error if a process listens on the socket that does not use the
// lock, which is held. A daemon that hands the socket over still listens on it, but it
// has noted in the file of the lock which socket is its own.
func (l *listener) unused() error {
	info, err := os.Lstat(l.socket)
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return nil //nolint:nilerr // the caller sees it too
	}
	own := identity(info)
	noted := make([]byte, len(own))
	if _, err := l.lock.ReadAt(noted, 0); err == nil && string(noted) == own {
		return nil
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: l.socket, Net: "unix"})
	if err == nil {
		_ = c.Close()
	}
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.New("another process listens on it: stop that one first")
}

// identity returns what tells the socket from all others that have its name.
func identity(info fs.FileInfo) string {
	var dev, ino uint64
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		dev, ino = uint64(st.Dev), st.Ino //nolint:unconvert // 32 bits on mips
	}
	return fmt.Sprintf("%016x %016x %016x\n", dev, ino, info.ModTime().UnixNano())
}

// Accept returns the next connection. After handOver it first returns all connections
// that were made before, and then fails.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.unix.Accept()
	if err == nil {
		return c, nil
	}
	l.mu.Lock()
	ending := l.ending
	l.mu.Unlock()
	if !ending {
		return nil, err
	}
	c, err = l.queued()
	if err != nil {
		return nil, &net.OpError{Op: "accept", Net: "unix", Addr: l.Addr(), Err: err}
	}
	return c, nil
}

func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: l.socket, Net: "unix"} }

// handOver lets the next daemon have the socket. If another daemon waits in listen,
// handOver returns when that has taken over. If none waits, or if ctx ends first, which
// is an error, further connections are refused.
func (l *listener) handOver(ctx context.Context) error {
	l.mu.Lock()
	l.release()
	l.mu.Unlock()
	err := l.takenOver(ctx)
	if err != nil {
		err = fmt.Errorf("hand over %s: %w", l.socket, err)
	}
	return errors.Join(err, l.end())
}

// takenOver waits until another daemon has the socket, or nobody waits for it.
func (l *listener) takenOver(ctx context.Context) error {
	err := flock.Wait(ctx, 0, func() (bool, error) { return !l.own() || !l.awaited(), nil })
	if err != nil {
		err = fmt.Errorf("the next daemon has not taken the socket: %w", err)
	}
	return err
}

// end makes Accept fail once it has returned the connections that were made before.
func (l *listener) end() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending || l.closed {
		return nil
	}
	raw, err := l.unix.SyscallConn()
	if err != nil {
		return err
	}
	// From here on the kernel refuses connections from those who opened the name
	// before it was the next daemon's: Accept would not return them.
	cerr := raw.Control(func(fd uintptr) { err = unix.Shutdown(int(fd), unix.SHUT_RD) })
	l.ending = true
	return errors.Join(cerr, err, l.unix.SetDeadline(time.Unix(1, 0)))
}

// queued returns a connection that was made before the end. After a deadline the
// net package does not accept them.
func (l *listener) queued() (net.Conn, error) {
	raw, err := l.unix.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	for again := true; again; {
		cerr := raw.Control(func(l uintptr) {
			fd, _, err = unix.Accept4(int(l), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		})
		if cerr != nil {
			return nil, net.ErrClosed
		}
		again = errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNABORTED)
	}
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINVAL) {
		return nil, net.ErrClosed
	}
	if err != nil {
		return nil, os.NewSyscallError("accept4", err)
	}
	f := os.NewFile(uintptr(fd), l.socket)
	defer func() { _ = f.Close() }()
	return net.FileConn(f)
}

// Close removes the socket if this listener still has it and nobody waits for it.
func (l *listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	defer l.release()
	if l.lock == nil {
		// Without the lock the name may become another's after own has looked.
		l.lock, _ = tryLockFile(l.socket + ".lock")
	}
	var err error
	if l.lock != nil && l.own() && !l.awaited() {
		err = os.Remove(l.socket)
	}
	return errors.Join(err, l.unix.Close())
}

// release releases the lock if it is held.
func (l *listener) release() {
	if l.lock != nil {
		unlockFile(l.lock)
		l.lock = nil
	}
}

// own reports whether the socket's name still belongs to l.
func (l *listener) own() bool {
	info, err := os.Lstat(l.socket)
	return err == nil && os.SameFile(info, l.info)
}

// awaited reports whether somebody may be waiting for the socket.
func (l *listener) awaited() bool {
	f, _ := tryLockFile(l.socket + ".next")
	if f == nil {
		return true
	}
	unlockFile(f)
	return false
}

// makePrivate makes the directory if it is missing, and checks it.
func makePrivate(dir string) error {
	var st unix.Stat_t
	err := unix.Lstat(dir, &st)
	if err == unix.ENOENT {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		err = unix.Lstat(dir, &st)
	}
	if err != nil {
		return &fs.PathError{Op: "lstat", Path: dir, Err: err}
	}
	switch kind, euid := st.Mode&unix.S_IFMT, os.Geteuid(); {
	case kind == unix.S_IFLNK:
		return fmt.Errorf("the directory %s is a symbolic link", dir)
	case kind != unix.S_IFDIR:
		return fmt.Errorf("%s is not a directory", dir)
	case int(st.Uid) != euid:
		return fmt.Errorf("the directory %s belongs to user %d, not to user %d, who runs this process", dir, st.Uid, euid)
	case st.Mode&0o077 != 0:
		return fmt.Errorf("other users may enter the directory %s: its mode is %#o, want 0700", dir, st.Mode&0o7777)
	}
	return nil
}
