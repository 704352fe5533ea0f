package relay

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
)

// scan returns the files of Dir that are to be launched, in order, and tells of
// the others.
func (r *Relay) scan(ctx context.Context) ([]file, error) {
	if r.Dir == "" {
		return nil, nil
	}
	info, err := os.Stat(r.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = trusted(info)
	}
	if err != nil {
		return nil, &Error{Op: "launch", Which: r.Dir, Err: err}
	}
	entries, err := os.ReadDir(r.Dir)
	if err != nil {
		return nil, &Error{Op: "launch", Which: r.Dir, Err: err}
	}
	var files []file
	for _, e := range entries {
		info, err := named(e.Name())
		path := filepath.Join(r.Dir, e.Name())
		if err == nil {
			err = launchable(path)
		}
		if err != nil {
			r.skip(ctx, e.Name(), info, err)
			continue
		}
		files = append(files, file{path, info})
	}
	return files, nil
}

// launchable refuses what is not to be launched.
func launchable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrSkipped, err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%w: it is not a regular file", ErrSkipped)
	case info.Mode()&0o111 == 0:
		return fmt.Errorf("%w: it is not executable", ErrSkipped)
	}
	if err := trusted(info); err != nil {
		return fmt.Errorf("%w: %w", ErrSkipped, err)
	}
	return nil
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

// A process is a launched delegate's, the leader of a group of its own.
type process struct {
	uid, pid int
	exited   chan struct{} // closed when the leader has exited, before it is reaped
	end      func()        // ends it, once, and returns when it is reaped
}

// start runs a delegate's executable with one end of a connection.
func (r *Relay) start(f file) (*process, net.Conn, error) {
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
		Path: f.path, Args: []string{f.path}, Dir: "/",
		Env:        []string{"CNI_RELAY_INDEX=" + f.info.Index, "CNI_RELAY_NAME=" + f.info.Name, "CNI_RELAY_SOCKET=3"},
		ExtraFiles: []*os.File{its},
		Stdout:     r.Stderr, Stderr: r.Stderr,
		WaitDelay:   time.Second,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
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
		_ = unix.Kill(-p.pid, unix.SIGTERM)
		late := time.NewTimer(r.grace())
		defer late.Stop()
		select {
		case <-p.exited:
		case <-late.C:
		case <-r.hurry:
		}
		_ = unix.Kill(-p.pid, unix.SIGKILL) // what it has started too
		<-p.exited
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
	return os.NewFile(uintptr(fds[0]), "relay"), os.NewFile(uintptr(fds[1]), "relay"), nil
}
