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
	"time"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/flock"
)

// Listen listens on the unix socket at the path socket, as the only one that
// does so by this function: while another process, or another [Listener] of
// this one, has the socket, Listen waits until that hands it over or dies, or
// ctx ends.
//
// The directory of the socket is made when it is missing, with those above it,
// and must otherwise be a real directory of this user that nobody else may
// enter: it is never changed or emptied. Only this user and root may connect.
// A socket that is there already is replaced without a moment in which there is
// none; anything else there is an error, and is left as it is. Beside the
// socket three more names are in use: socket with ".lock", ".next" and "~" added.
//
// On other systems than Linux it returns [errors.ErrUnsupported].
func Listen(ctx context.Context, socket string) (*Listener, error) {
	l, err := listen(ctx, socket)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	return l, nil
}

// A Listener is a [net.Listener] from [Listen], which hands its socket over to
// the next one. Its methods may be called by several goroutines at once.
type Listener struct {
	socket string
	unix   *net.UnixListener
	info   fs.FileInfo // of the socket's file, to know it by

	mu     sync.Mutex // guards what follows
	lock   *os.File   // nil once released
	ending bool       // nothing more comes in
	closed bool
}

func listen(ctx context.Context, socket string) (*Listener, error) {
	if socket == "" || socket[0] == '@' {
		return nil, errors.New("not a path")
	}
	temp := socket + "~"
	if most := len(unix.RawSockaddrUnix{}.Path) - 1; len(temp) > most {
		return nil, fmt.Errorf("the path has %d bytes, and %d is the most that a socket's can have here", len(socket), most-1)
	}
	if err := makePrivate(filepath.Dir(socket)); err != nil {
		return nil, err
	}
	// Held until the socket is ours, so that whoever has it sees us wait.
	next, err := lockFile(ctx, socket+".next")
	if err != nil {
		return nil, err
	}
	defer unlockFile(next)
	lock, err := lockFile(ctx, socket+".lock")
	if err != nil {
		return nil, err
	}
	l := &Listener{socket: socket, lock: lock}
	if err := l.bind(temp); err != nil {
		unlockFile(lock)
		return nil, err
	}
	return l, nil
}

// bind listens on temp, and gives that the socket's name once it is as it
// should be. It has the lock.
func (l *Listener) bind(temp string) (err error) {
	for _, path := range []string{l.socket, temp} {
		switch info, err := os.Lstat(path); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		case info.Mode().Type() != fs.ModeSocket:
			return fmt.Errorf("%s is there and is not a socket", path)
		}
	}
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // one that died here has left it
	}
	l.unix, err = net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return err
	}
	// It would unlink the name whosever it is by then.
	l.unix.SetUnlinkOnClose(false)
	err = os.Chmod(temp, 0o600)
	if err == nil {
		l.info, err = os.Lstat(temp)
	}
	if err == nil {
		err = os.Rename(temp, l.socket)
	}
	if err != nil {
		_ = os.Remove(temp) // the first error says more
		_ = l.unix.Close()
	}
	return err
}

// Accept returns the next connection, a [*net.UnixConn]. Its error is
// [net.ErrClosed] after Close, and after HandOver once it has returned every
// connection that was made before.
func (l *Listener) Accept() (net.Conn, error) {
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

// Addr returns the socket's path, as given to Listen.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Name: l.socket, Net: "unix"} }

// HandOver lets the next one have the socket: call it when this process has
// nothing left to do. If one waits in Listen, HandOver returns when it has taken
// over. If none does, or ctx ends first, which is an error, further connections
// are refused. Either way Accept goes on until it has returned all that were
// made before, so call it all the while.
func (l *Listener) HandOver(ctx context.Context) error {
	l.mu.Lock()
	l.release()
	l.mu.Unlock()
	err := l.takenOver(ctx)
	if err != nil {
		err = fmt.Errorf("hand over %s: %w", l.socket, err)
	}
	return errors.Join(err, l.end())
}

// takenOver waits until the socket's name is another's, or nobody waits for it.
func (l *Listener) takenOver(ctx context.Context) error {
	err := flock.Wait(ctx, func() (bool, error) { return !l.own() || !l.awaited(), nil })
	if err != nil {
		err = fmt.Errorf("the next daemon has not taken it: %w", err)
	}
	return err
}

// end makes Accept return what there is and no more.
func (l *Listener) end() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending || l.closed {
		return nil
	}
	raw, err := l.unix.SyscallConn()
	if err != nil {
		return err
	}
	// From here on the kernel refuses who has looked the name up before it was
	// the next one's, and would come too late to be seen by Accept.
	cerr := raw.Control(func(fd uintptr) { err = unix.Shutdown(int(fd), unix.SHUT_RD) })
	l.ending = true
	return errors.Join(cerr, err, l.unix.SetDeadline(time.Unix(1, 0)))
}

// queued returns a connection that has been made before the end. The net
// package accepts none after a deadline.
func (l *Listener) queued() (net.Conn, error) {
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

// Close stops listening, whoever may still want to connect or has done so: see
// HandOver. It removes the socket if that is still this listener's and nobody
// waits for it. The second and every later call does nothing and returns nil.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	defer l.release()
	if l.lock == nil {
		// Without the lock the name may become another's after we have looked.
		l.lock, _ = tryLockFile(l.socket + ".lock")
	}
	var err error
	if l.lock != nil && l.own() && !l.awaited() {
		err = os.Remove(l.socket)
	}
	return errors.Join(err, l.unix.Close())
}

// release lets go of the lock if it is held.
func (l *Listener) release() {
	if l.lock != nil {
		unlockFile(l.lock)
		l.lock = nil
	}
}

// own reports whether the socket's name is still that of l's own.
func (l *Listener) own() bool {
	info, err := os.Lstat(l.socket)
	return err == nil && os.SameFile(info, l.info)
}

// awaited reports whether somebody waits for the socket, or may do so.
func (l *Listener) awaited() bool {
	f, _ := tryLockFile(l.socket + ".next")
	if f == nil {
		return true
	}
	unlockFile(f)
	return false
}

// makePrivate makes the directory, or checks it.
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
		return fmt.Errorf("the directory %s is user %d's, and this is user %d", dir, st.Uid, euid)
	case st.Mode&0o077 != 0:
		return fmt.Errorf("the directory %s is open to others: its mode is %#o, and 0700 is wanted", dir, st.Mode&0o7777)
	}
	return nil
}
