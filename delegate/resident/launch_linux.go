package resident

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/internal/proctree"
)

// maxRelaunch is the longest pause before a resident is launched again.
const maxRelaunch = time.Minute

// scan returns the names of the files in Dir.
func (h *Host) scan() (names []string, err error) {
	if h.Dir == "" {
		return nil, nil
	}
	err = trustedDir(h.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var entries []fs.DirEntry
	if err == nil {
		entries, err = os.ReadDir(h.Dir)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, fault.Of("launch", h.Dir, err)
}

// supervise launches the resident in the file name of Dir, again each time it ends. It calls
// settled when the resident has registered or failed to. A file that must not be launched
// at first is left alone from then on.
func (h *Host) supervise(ctx context.Context, name string, settled func()) {
	info, err := named(name)
	f := Status{Info: info, Path: filepath.Join(h.Dir, name), UID: -1}
	first, launched := cmp.Or(h.relaunch, time.Second), false
	for wait := first; ; wait = min(2*wait, maxRelaunch) {
		e := &entry{Status: f}
		var conn net.Conn
		if err == nil {
			conn, err = h.start(e)
		}
		if err == nil {
			launched = true
			err = h.attend(ctx, e, conn, func() {
				wait = first
				settled()
			})
		} else {
			err = fault.Of("launch", fmt.Sprintf("%.100q", name), err)
			h.observe(f.failed(err))
		}
		if err != nil {
			h.note(f.failed(err))
		}
		settled()
		if first < 0 || errors.Is(err, errSkipped) && !launched || !pause(ctx.Done(), wait) {
			return
		}
		err = nil
	}
}

// failed returns the status of a file that does not serve.
func (s Status) failed(err error) Status {
	if errors.Is(err, errSkipped) {
		return s.as(Skipped, err)
	}
	return s.as(Refused, err)
}

// start runs the executable of e with one end of a connection. It runs
// the file that it has checked, even if the path is replaced meanwhile. The
// resident inherits the descriptor of the file, which the interpreter of a script
// needs. The process leads its own process group.
func (h *Host) start(e *entry) (net.Conn, error) {
	if err := trustedDir(h.Dir); err != nil {
		return nil, fmt.Errorf("%w: %w", errSkipped, err)
	}
	executable, err := openTrusted(e.Path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = executable.Close() }()
	conn, its, err := socketpair()
	if err != nil {
		return nil, err
	}
	defer func() { _ = its.Close() }()
	pidfd := -1
	cmd := &exec.Cmd{
		Path: "/proc/self/fd/4", Args: []string{e.Path}, Dir: "/",
		Env:        []string{"CNI_RELAY_INDEX=" + e.Index, "CNI_RELAY_NAME=" + e.Name, "CNI_RELAY_SOCKET=3"},
		ExtraFiles: []*os.File{its, executable},
		Stdout:     h.Stderr, Stderr: h.Stderr,
		WaitDelay:   time.Second,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, PidFD: &pidfd},
	}
	if err := cmd.Start(); err != nil {
		_ = conn.Close()
		return nil, err
	}
	pid, exited := cmd.Process.Pid, make(chan struct{})
	h.tasks.Go(func() {
		for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
		}
		close(exited)
		_ = conn.Close() // its children may hold the other end
	})
	e.PID, e.bury = pid, func() {
		// It is not reaped yet, so that its PID is still its own.
		below := proctree.Below(pid) // their parents may exit first
		_ = unix.Kill(-pid, unix.SIGTERM)
		select {
		case <-exited:
		case <-time.After(cmp.Or(h.grace, 2*time.Second)):
		case <-h.hurry:
		}
		proctree.Kill(pid, pidfd)
		below.Kill()
		_ = unix.Kill(-pid, unix.SIGKILL) // processes whose parents have exited
		<-exited
		_ = unix.Close(pidfd)
		_ = cmd.Wait() // its exit status does not matter
	}
	return conn, nil
}

// socketpair returns a connection and its other end, which other children do not inherit.
func socketpair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, its := os.NewFile(uintptr(fds[0]), "resident"), os.NewFile(uintptr(fds[1]), "resident")
	defer func() { _ = ours.Close() }()
	conn, err := net.FileConn(ours)
	if err != nil {
		_ = its.Close()
	}
	return conn, its, err
}

// openTrusted opens an executable. It fails with errSkipped if the executable must not
// be launched.
func openTrusted(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errSkipped, err)
	}
	opened := os.NewFile(uintptr(fd), path) //nolint:gosec // a descriptor
	info, err := opened.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = errors.New("it is not a regular file")
	case info.Mode()&0o111 == 0:
		err = errors.New("it is not executable")
	default:
		err = durable.Trusted(info)
	}
	if err != nil {
		_ = opened.Close()
		return nil, fmt.Errorf("%w: %w", errSkipped, err)
	}
	return opened, nil
}

// trustedDir fails when other users than root and the one of this process may put
// files into a directory.
func trustedDir(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		err = unix.ENOTDIR
	}
	if err == nil {
		err = durable.Trusted(info)
	}
	return fault.Of("", path, err)
}
