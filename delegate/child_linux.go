package delegate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/flock"
	"github.com/metacni/metacni/internal/proctree"
	"github.com/metacni/metacni/internal/thread"
)

// A child is a plugin that has been started. Waiting for its output and for its
// exit blocks no thread: a thread costs more than everything else here.
type child struct {
	pid   int
	pidfd int
	exit  *os.File // the pidfd: readable when the child has exited
	run   *flock.Run

	stdin, stdout, stderr *os.File // our ends of its pipes
}

// start starts the executable at path. Close the child.
func (p *Process) start(ctx context.Context, path string, environ []string) (_ *child, err error) {
	c := &child{pidfd: -1}
	var files []uintptr
	defer func() {
		for _, theirs := range files[:min(len(files), 3)] {
			_ = unix.Close(int(theirs))
		}
		if err != nil {
			c.close()
		}
	}()
	for _, ours := range []**os.File{&c.stdin, &c.stdout, &c.stderr} {
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			return nil, fmt.Errorf("pipe: %w", err)
		}
		if ours == &c.stdin {
			ends[0], ends[1] = ends[1], ends[0]
		}
		*ours = pollable(ends[0])
		files = append(files, uintptr(ends[1]))
	}
	if c.run, err = flock.Start(ctx); err != nil {
		return nil, fmt.Errorf("the lock's file: %w", err)
	}
	handed := flock.Files(ctx)
	for _, f := range handed {
		files = append(files, f.Fd())
	}
	fork := func() (err error) {
		c.pid, err = syscall.ForkExec(path, []string{path}, &syscall.ProcAttr{
			Dir: "/", Env: environ, Files: files,
			Sys: &syscall.SysProcAttr{Setpgid: true, PidFD: &c.pidfd, Chroot: p.Root},
		})
		return err
	}
	if !optionsOf(ctx).NoNewPrivs {
		err = fork()
	} else {
		thread.Alone(func() { // which cannot drop no_new_privs, and the child inherits it
			if err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err == nil {
				err = fork()
			}
		})
	}
	runtime.KeepAlive(handed)
	if err != nil {
		return nil, &fs.PathError{Op: "fork/exec", Path: path, Err: err}
	}
	if c.pidfd < 0 {
		_ = unix.Kill(c.pid, unix.SIGKILL)
		_ = c.reap()
		return nil, errors.New("running plugins needs Linux 5.4 or later")
	}
	c.run.Is(c.pid)
	c.exit = pollable(c.pidfd)
	return c, nil
}

// pollable returns a file that waits in the runtime's poller.
func pollable(fd int) *os.File {
	_ = unix.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), "") //nolint:gosec // a descriptor that was just opened
}

// close closes our files of a child that was reaped or never ran.
func (c *child) close() {
	if c.run != nil {
		c.run.Ended()
	}
	for _, f := range []*os.File{c.exit, c.stdin, c.stdout, c.stderr} {
		_ = f.Close()
	}
}

// attend waits until c exits, reaps it, and says how it exited. When ctx ends,
// it asks c to end, and after grace it kills what is left.
func (c *child) attend(ctx context.Context, grace func(context.Context) time.Duration) error {
	stop := context.AfterFunc(ctx, func() { _ = c.exit.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if !c.exited() {
		c.terminate()
		_ = c.exit.SetReadDeadline(time.Now().Add(grace(ctx)))
		c.exited()
		c.kill()
	}
	return c.reap()
}

// exited waits until c exits. It reports false if the deadline of c.exit comes
// first. It does not reap c, so that no other process can get its PID.
func (c *child) exited() bool {
	conn, err := c.exit.SyscallConn()
	if err != nil {
		return false
	}
	return nil == conn.Read(func(uintptr) bool {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, c.pid, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
		return err != nil || info.Signo != 0
	})
}

// terminate sends SIGTERM to the group of c, and to c if it has left its group.
func (c *child) terminate() {
	_ = unix.Kill(-c.pid, unix.SIGTERM)
	if group, err := unix.Getpgid(c.pid); err == nil && group != c.pid {
		_ = unix.Kill(c.pid, unix.SIGTERM)
	}
}

// kill sends SIGKILL to c, to its descendants and to its group. The plugins of a
// meta-plugin are descendants outside the group.
func (c *child) kill() {
	proctree.Kill(c.pid, c.pidfd)
	_ = unix.Kill(-c.pid, unix.SIGKILL)
}

// reap waits until c exits, and returns nil if it exits with status 0.
func (c *child) reap() error {
	defer c.run.Ended()
	var ws unix.WaitStatus
	_, err := unix.Wait4(c.pid, &ws, 0, nil)
	for errors.Is(err, unix.EINTR) {
		_, err = unix.Wait4(c.pid, &ws, 0, nil)
	}
	switch {
	case err != nil:
		return fmt.Errorf("wait: %w", err)
	case ws.Signaled():
		return fmt.Errorf("signal: %s", ws.Signal())
	case ws.ExitStatus() != 0:
		return fmt.Errorf("exit status %d", ws.ExitStatus())
	}
	return nil
}

// send writes text to the stdin of c, and closes it.
func (c *child) send(text []byte) {
	_, _ = c.stdin.Write(text) // a plugin need not read its configuration
	_ = c.stdin.Close()
}

// collect reads until the end of file or the deadline of f. After the deadline
// it reads what is still in the pipe.
func collect(f *os.File, to func([]byte)) {
	var buf [4096]byte
	var err error
	for n := 0; err == nil; {
		n, err = f.Read(buf[:])
		to(buf[:n])
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		to(inPipe(f))
	}
}

// inPipe reads what is in a pipe now. It does not wait: others may go on writing.
func inPipe(f *os.File) (text []byte) {
	conn, err := f.SyscallConn()
	if err != nil {
		return nil
	}
	_ = conn.Control(func(fd uintptr) {
		n, _ := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		text = make([]byte, n)
		n, _ = unix.Read(int(fd), text)
		text = text[:max(n, 0)]
	})
	return text
}

// finish waits until the pipes of c, which has exited, are read to their end. It
// gives up after limit, because children of c may keep them open.
func (c *child) finish(limit time.Duration, readers *sync.WaitGroup) {
	_ = c.stdin.Close()
	late := time.Now().Add(limit)
	_ = c.stdout.SetReadDeadline(late)
	_ = c.stderr.SetReadDeadline(late)
	readers.Wait()
}
