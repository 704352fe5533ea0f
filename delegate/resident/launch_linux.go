package resident

import (
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

	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/internal/proctree"
)

// scan returns the files of Dir to launch, in order, and observes the others.
func (h *Host) scan() ([]file, error) {
	if h.Dir == "" {
		return nil, nil
	}
	err := trustedDir(h.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var entries []fs.DirEntry
	if err == nil {
		entries, err = os.ReadDir(h.Dir)
	}
	if err != nil {
		return nil, fault.Of("launch", h.Dir, err)
	}
	var files []file
	for _, e := range entries {
		info, err := named(e.Name())
		f := file{filepath.Join(h.Dir, e.Name()), info}
		if err == nil {
			var opened *os.File
			opened, err = f.open()
			_ = opened.Close() // each launch opens it again
		}
		if err != nil {
			s := f.failed(fault.Of("launch", fmt.Sprintf("%.100q", e.Name()), err))
			h.note(s)
			h.observe(s)
			continue
		}
		files = append(files, f)
	}
	return files, nil
}

// open opens an executable of Dir. It fails when the executable must not be launched.
func (f file) open() (*os.File, error) {
	fd, err := unix.Open(f.path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errSkipped, err)
	}
	opened := os.NewFile(uintptr(fd), f.path) //nolint:gosec // a descriptor
	info, err := opened.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = errors.New("it is not a regular file")
	case info.Mode()&0o111 == 0:
		err = errors.New("it is not executable")
	default:
		err = trusted(info)
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
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return &fs.PathError{Op: "open", Path: path, Err: unix.ENOTDIR}
	}
	if err := trusted(info); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// trusted fails when other users than root and the one of this process may have
// written the file.
func trusted(info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return errors.New("its owner is unknown")
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("it belongs to user %d", st.Uid)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("other users may write to it: its mode is %#o", info.Mode().Perm())
	}
	return nil
}

// A process is that of a launched resident. It leads its own process group.
type process struct {
	pid    int
	exited chan struct{} // closed when the leader has exited, before it is reaped
	end    func()        // ends the process, and returns when it is reaped; may be called twice
}

// start runs the executable of a resident with one end of a connection. It runs
// the file that it has checked, even if the path is replaced meanwhile. The
// resident inherits the descriptor of the file, which the interpreter of a script
// needs.
func (h *Host) start(f file) (*process, net.Conn, error) {
	if err := trustedDir(h.Dir); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errSkipped, err)
	}
	executable, err := f.open()
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
		Stdout:     h.Stderr, Stderr: h.Stderr,
		WaitDelay:   time.Second,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	pidfd := -1
	cmd.SysProcAttr.PidFD = &pidfd
	if err := cmd.Start(); err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	p := &process{pid: cmd.Process.Pid, exited: make(chan struct{})}
	h.tasks.Go(func() {
		defer close(p.exited)
		for errors.Is(unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
		}
	})
	p.end = sync.OnceFunc(func() {
		// It is not reaped yet, so that its PID is still its own.
		below := proctree.Below(p.pid) // their parents may exit first
		_ = unix.Kill(-p.pid, unix.SIGTERM)
		late := time.NewTimer(orDefault(h.grace, 2*time.Second))
		defer late.Stop()
		select {
		case <-p.exited:
		case <-late.C:
		case <-h.hurry:
		}
		proctree.Kill(p.pid, pidfd)
		below.Kill()
		_ = unix.Kill(-p.pid, unix.SIGKILL) // processes whose parents have exited
		<-p.exited
		_ = unix.Close(pidfd)
		_ = cmd.Wait() // its exit status does not matter
	})
	return p, conn, nil
}

// socketpair returns two connected sockets that other children do not inherit.
func socketpair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "resident"), os.NewFile(uintptr(fds[1]), "resident"), nil
}
