package thick

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/flock"
)

// A listener has a socket and its lock.
type listener struct {
	*net.UnixListener

	lock   *os.File
	socket string        // empty if a service manager has passed it, which goes on listening
	file   string        // path of the socket; empty if it has none
	id     string        // of the socket's file
	every  time.Duration // between two looks for the socket, while nobody connects

	mu   sync.Mutex // held while Accept listens again, which changes what is above
	ends bool       // Accept does not listen again any more
	why  error      // it could not the last time, or nil
}

func listen(ctx context.Context, socket string) (net.Listener, error) {
	if most := len(unix.RawSockaddrUnix{}.Path) - len("~") - 1; len(socket) > most {
		return nil, fmt.Errorf("the path has %d bytes, but at most %d are possible", len(socket), most)
	}
	if err := makePrivate(filepath.Dir(socket)); err != nil {
		return nil, err
	}
	// Held until the socket is ours, so that its owner sees that we wait.
	next, err := takeLock(ctx, socket+".next")
	if err != nil {
		return nil, err
	}
	defer flock.Release(next)
	l := &listener{socket: socket, file: socket, every: checkSocket}
	if l.lock, err = takeLock(ctx, socket+".lock"); err != nil {
		return nil, err
	}
	if err := l.bind(socket + "~"); err != nil {
		flock.Release(l.lock)
		return nil, err
	}
	return l, nil
}

// bind listens on temp, sets its mode and renames it to the socket. The lock is held.
func (l *listener) bind(temp string) error {
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
	_ = os.Remove(temp) // left by a process that died
	made, err := net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return err
	}
	made.SetUnlinkOnClose(false) // it may be another's by then
	l.UnixListener, l.id = made, identity(temp)
	// If this fails, the next daemon cannot take over while this one still listens.
	_, _ = l.lock.WriteAt([]byte(l.id), 0)
	err = os.Chmod(temp, 0o600)
	if err == nil {
		err = os.Rename(temp, l.socket)
	}
	if err != nil {
		return errors.Join(err, made.Close())
	}
	return nil
}

// Accept returns the next connection. If somebody removes the socket, or its directory, Accept
// listens again.
func (l *listener) Accept() (net.Conn, error) {
	for lost := false; ; {
		_ = l.SetDeadline(time.Now().Add(l.every))
		c, err := l.UnixListener.Accept()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return c, err
		}
		if lost && l.socket != "" { // and all who had connected have been accepted
			l.restore()
		}
		lost = l.lost() != nil
	}
}

// checkSocket is the usual time between two looks for the socket.
const checkSocket = 2 * time.Second

// lost returns an error if nobody can connect to l any more.
func (l *listener) lost() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	const inode = len("0123456789abcdef 0123456789abcdef") // which nobody else has while l listens
	if is := identity(l.file); l.ends || l.id == "" || is != "" && is[:inode] == l.id[:inode] {
		return nil
	}
	if l.socket == "" {
		return fmt.Errorf("somebody has removed the socket %s: restart its unit", l.file)
	}
	return errors.Join(fmt.Errorf("somebody has removed the socket %s", l.file), l.why)
}

// restore listens again, unless another process does.
func (l *listener) restore() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ends {
		return
	}
	next := &listener{socket: l.socket, lock: l.lock}
	l.why = makePrivate(filepath.Dir(l.socket))
	if l.why == nil && !named(l.lock, l.socket+".lock") {
		next.lock, l.why = tryLock(l.socket + ".lock")
	}
	if l.why == nil {
		l.why = next.bind(l.socket + "~")
	}
	switch {
	case l.why == nil:
		_ = l.UnixListener.Close()
		if next.lock != l.lock {
			flock.Release(l.lock)
		}
		l.UnixListener, l.lock, l.id = next.UnixListener, next.lock, next.id
	case next.lock != l.lock:
		flock.Release(next.lock)
	}
}

// named reports whether the open file f is the one at path.
func named(f *os.File, path string) bool {
	open, err := f.Stat()
	is, serr := os.Lstat(path)
	return err == nil && serr == nil && os.SameFile(open, is)
}

// unused returns an error if a process listens on the socket that does not use the
// lock, which is held. A daemon that hands the socket over still listens on it, but it
// has noted in the file of the lock which socket is its own.
func (l *listener) unused() error {
	is := identity(l.socket)
	noted := make([]byte, len(is))
	if _, err := l.lock.ReadAt(noted, 0); err == nil && string(noted) == is {
		return nil
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: l.socket, Net: "unix"})
	if err == nil {
		_ = c.Close() // nothing was written
	}
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil
	}
	return errors.New("another process listens on it: stop that one first")
}

// identity returns what tells a socket from all others that have its name, or "" if there is
// no socket at path.
func identity(path string) string {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return ""
	}
	return fmt.Sprintf("%016x %016x %016x\n", st.Dev, st.Ino, st.Mtim.Nano())
}

// Addr returns the address of the socket.
func (l *listener) Addr() net.Addr {
	if l.socket == "" {
		return l.UnixListener.Addr()
	}
	return &net.UnixAddr{Name: l.socket, Net: "unix"}
}

// handOver lets the next daemon have the socket. If a daemon waits in listen, handOver returns
// when that has taken over, and with an error if ctx ends first. Then further connections are
// refused, or left to the service manager. Accept returns those that were made before, and
// then fails.
func (l *listener) handOver(ctx context.Context) error {
	l.stay()
	if l.socket == "" {
		return l.Close()
	}
	var late error
	if l.awaited() {
		flock.Release(l.lock)
		late = flock.Wait(ctx, 0, func() (bool, error) { return identity(l.socket) != l.id || !l.awaited(), nil })
	}
	defer flock.Release(l.lock)
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	cerr := raw.Control(func(fd uintptr) {
		// After the shutdown accept(2) fails with EINVAL once it has returned all. If it may
		// not block, it fails with EAGAIN, and Accept would wait for ever.
		err = errors.Join(unix.SetNonblock(int(fd), false), unix.Shutdown(int(fd), unix.SHUT_RD))
	})
	return errors.Join(late, cerr, err)
}

// awaited reports whether a daemon waits for the socket.
func (l *listener) awaited() bool {
	next, err := openLock(l.socket + ".next")
	if err != nil {
		return false
	}
	defer flock.Release(next)
	free, err := flock.Try(int(next.Fd()), true)
	return !free && err == nil
}

// stay ends listening again.
func (l *listener) stay() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ends = true
}

// Close stops listening and releases the lock. The socket's file stays, because it may be the
// next daemon's.
func (l *listener) Close() error {
	l.stay()
	defer flock.Release(l.lock)
	return l.UnixListener.Close()
}

// makePrivate makes the directory if it is missing, and checks it.
func makePrivate(dir string) error {
	var st unix.Stat_t
	made := os.MkdirAll(dir, 0o700)
	if err := unix.Lstat(dir, &st); err != nil {
		return errors.Join(made, &fs.PathError{Op: "lstat", Path: dir, Err: err})
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

// firstFD is the first file descriptor that a service manager passes.
const firstFD = 3

// activated returns the socket that the service manager has passed, with its lock, or
// nil if there is none.
func activated(ctx context.Context, env []string) (net.Listener, error) {
	l, err := passed(env)
	if err != nil {
		return nil, fmt.Errorf("socket activation: %w", err)
	}
	if l == nil {
		return nil, nil
	}
	own := &listener{UnixListener: l, every: checkSocket}
	if path := l.Addr().String(); filepath.IsAbs(path) { // only a socket that has a file has a lock
		own.file, own.id = path, identity(path)
		if own.lock, err = takeLock(ctx, path+".lock"); err != nil {
			return nil, fmt.Errorf("socket activation: %w", errors.Join(err, l.Close()))
		}
	}
	return own, nil
}

// passed returns the socket that the service manager has passed, or nil.
func passed(env []string) (*net.UnixListener, error) {
	pid, err := number(env, "LISTEN_PID")
	if err != nil || pid != os.Getpid() {
		return nil, err // meant for another process
	}
	n, err := number(env, "LISTEN_FDS")
	if err != nil || n == 0 {
		return nil, err
	}
	if n != 1 {
		return nil, fmt.Errorf("LISTEN_FDS passes %d sockets, want 1", n)
	}
	listening, err := unix.GetsockoptInt(firstFD, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil {
		return nil, fmt.Errorf("file descriptor %d: %w", firstFD, os.NewSyscallError("getsockopt", err))
	}
	if listening == 0 {
		return nil, fmt.Errorf("file descriptor %d: not listening", firstFD)
	}
	unix.CloseOnExec(firstFD)
	f := os.NewFile(firstFD, "LISTEN_FD_3")
	defer func() { _ = f.Close() }()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	u, ok := l.(*net.UnixListener)
	if !ok || l.Addr().Network() != "unix" {
		return nil, errors.Join(fmt.Errorf("file descriptor %d: not a unix stream socket", firstFD), l.Close())
	}
	return u, nil
}

// number returns the value of the variable key, and 0 if there is none.
func number(env []string, key string) (int, error) {
	for _, e := range env {
		if value, found := strings.CutPrefix(e, key+"="); found {
			n, err := strconv.Atoi(value)
			if err != nil || n < 0 {
				err = fmt.Errorf("%s is not a number: %q", key, value)
			}
			return n, err
		}
	}
	return 0, nil
}

// openLock opens the file at path, which it makes if it is missing. Children do not inherit
// it. The file is never removed, because a lock on a removed file excludes nobody.
func openLock(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
}

// tryLock opens the file at path and takes its lock, unless another process has it.
func tryLock(path string) (*os.File, error) {
	l, err := openLock(path)
	if err != nil {
		return nil, err
	}
	held, err := flock.TryFile(l)
	if held {
		return l, nil
	}
	return nil, cmp.Or(err, errors.New("another daemon has it"))
}

// takeLock opens the file at path and waits for its lock, which lasts until [flock.Release] or
// the end of the process.
func takeLock(ctx context.Context, path string) (*os.File, error) {
	l, err := openLock(path)
	if err != nil {
		return nil, err
	}
	err = flock.Wait(ctx, 0, func() (bool, error) { return flock.Try(int(l.Fd()), true) })
	if err == nil {
		return l, nil
	}
	_ = l.Close() // nothing was written
	if ctx.Err() != nil {
		err = fmt.Errorf("another daemon has it: %w", err)
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}
