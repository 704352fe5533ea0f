package resident

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/proctree"
)

// scan returns the files of Dir that are to be launched, in order, and tells of
// the others.
func (r *Host) scan(ctx context.Context) ([]file, error) {
	if r.Dir == "" {
		return nil, nil
	}
	dir, err := r.openDir()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var entries []fs.DirEntry
	if err == nil {
		_ = dir.Close()
		entries, err = os.ReadDir(r.Dir)
	}
	if err != nil {
		return nil, &Error{Op: "launch", Which: r.Dir, Err: err}
	}
	var files []file
	for _, e := range entries {
		info, err := named(e.Name())
		path := filepath.Join(r.Dir, e.Name())
		if err == nil {
			var f *os.File
			f, err = r.openFile(path)
			_ = f.Close() // it is opened again for each launch
		}
		if err != nil {
			r.skip(ctx, e.Name(), info, err)
			continue
		}
		files = append(files, file{path, info})
	}
	return files, nil
}

// openDir opens Dir, unless others may write to it.
func (r *Host) openDir() (*os.File, error) {
	dir, err := openPath(unix.AT_FDCWD, r.Dir, unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	info, err := dir.Stat()
	if err == nil {
		err = trusted(info)
	}
	if err != nil {
		_ = dir.Close()
		return nil, err
	}
	return dir, nil
}

// openFile opens the file of Dir at path, unless it is not to be launched. Links
// are followed: what they lead to is looked at, and is what is opened.
func (r *Host) openFile(path string) (*os.File, error) {
	dir, err := r.openDir()
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrSkipped, r.Dir, err)
	}
	defer func() { _ = dir.Close() }()
	f, err := openPath(int(dir.Fd()), filepath.Base(path), 0) //nolint:gosec // a descriptor
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSkipped, err)
	}
	if err := launchable(f); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%w: %w", ErrSkipped, err)
	}
	return f, nil
}

// openPath opens what is at path, seen from the directory of a descriptor, to be
// looked at and executed, whatever it is.
func openPath(dir int, path string, flags int) (*os.File, error) {
	for {
		fd, err := unix.Openat(dir, path, unix.O_PATH|unix.O_CLOEXEC|flags, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		default:
			return os.NewFile(uintptr(fd), path), nil //nolint:gosec // a descriptor
		}
	}
}

// launchable refuses what is not to be launched.
func launchable(f *os.File) error {
	info, err := f.Stat()
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("it is not a regular file")
	case info.Mode()&0o111 == 0:
		return errors.New("it is not executable")
	}
	return trusted(info)
}

// trusted refuses what others than root and this process's user may have
// written.
func trusted(info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return errors.New("its owner is not known")
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("it is user %d's", st.Uid)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("others may write to it: its mode is %#o", info.Mode().Perm())
	}
	return nil
}

// A process is a launched resident's, the leader of a group of its own.
type process struct {
	uid, pid int
	exited   chan struct{} // closed when the leader has exited, before it is reaped
	end      func()        // ends it, once, and returns when it is reaped
}

// start runs a resident's executable with one end of a connection. What is run
// is the file that has been looked at, whatever is at its path by now. The
// resident inherits its descriptor: the interpreter of a script opens it again.
func (r *Host) start(f file) (*process, net.Conn, error) {
	executable, err := r.openFile(f.path)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = executable.Close() }()
	ours, its, err := socketpair()
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = its.Close() }()
	conn, err := net.FileConn(ours)
	_ = ours.Close()
	if err != nil {
		return nil, nil, err
	}
	cmd := &exec.Cmd{
		Path: "/proc/self/fd/4", Args: []string{f.path}, Dir: "/",
		Env:        []string{"CNI_RELAY_INDEX=" + f.info.Index, "CNI_RELAY_NAME=" + f.info.Name, "CNI_RELAY_SOCKET=3"},
		ExtraFiles: []*os.File{its, executable},
		Stdout:     r.Stderr, Stderr: r.Stderr,
		WaitDelay:   time.Second,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	pidfd := -1
	cmd.SysProcAttr.PidFD = &pidfd
	if err := cmd.Start(); err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	p := &process{uid: os.Geteuid(), pid: cmd.Process.Pid, exited: make(chan struct{})}
	r.tasks.Go(func() {
		defer close(p.exited)
		for errors.Is(unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
		}
	})
	p.end = sync.OnceFunc(func() {
		// It is not reaped yet: its number cannot be another's.
		below := proctree.Below(p.pid) // whose parents may exit first
		_ = unix.Kill(-p.pid, unix.SIGTERM)
		late := time.NewTimer(r.grace())
		defer late.Stop()
		select {
		case <-p.exited:
		case <-late.C:
		case <-r.hurry:
		}
		proctree.Kill(p.pid, pidfd)
		below.Kill()
		_ = unix.Kill(-p.pid, unix.SIGKILL) // what has outlived its parents
		<-p.exited
		_ = unix.Close(pidfd)
		_ = cmd.Wait() // how it ended does not matter
	})
	return p, conn, nil
}

// socketpair returns two connected sockets that no other child inherits.
func socketpair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "resident"), os.NewFile(uintptr(fds[1]), "resident"), nil
}
