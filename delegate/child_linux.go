package delegate

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A child is a plugin that has been started. The goroutine that started it
// waits for all that can happen to it in one place, a poll(2): room to write,
// something to read, its end, and that of its context. Another goroutine for
// each of these would cost more than the fork.
type child struct {
	pid    int
	events [5]unix.PollFd // a descriptor each, -1 when closed
	waker  waker
	gone   atomic.Bool // it has exited, where no descriptor tells

	input          []byte // not yet written
	stdout, stderr capture
	passed         passed
	buf            [4096]byte
}

// The events of a child.
const (
	woken   = iota // by another goroutine
	exited         // its pidfd
	toStdin        // our end of the pipe, as the next two
	onStdout
	onStderr
)

// maxPipe is the most that a pipe holds, in bytes: what its writers print after
// that may be lost.
const maxPipe = 1 << 20

// start starts the executable at path. Nothing is written to its stdin yet.
// Close the child.
func (p *Process) start(ctx context.Context, path string, environ []string) (*child, error) {
	c := &child{
		stdout: capture{limit: p.maxStdout()},
		stderr: capture{limit: 4096, tail: true},
		passed: passed{to: p.Stderr, left: maxStderr},
	}
	for i := range c.events {
		c.events[i] = unix.PollFd{Fd: -1, Events: unix.POLLIN}
	}
	c.events[toStdin].Events = unix.POLLOUT
	if err := c.fork(ctx, p.Root, path, environ); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *child) fork(ctx context.Context, root, path string, environ []string) error {
	if err := c.waker.open(); err != nil {
		return err
	}
	c.set(woken, c.waker.fd)
	var files []uintptr
	defer func() {
		for _, theirs := range files[:min(len(files), 3)] {
			_ = unix.Close(int(theirs))
		}
	}()
	for event := toStdin; event <= onStderr; event++ {
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			return fmt.Errorf("pipe: %w", err)
		}
		ours, theirs := ends[0], ends[1]
		if event == toStdin {
			ours, theirs = theirs, ours
		}
		c.set(event, ours)
		files = append(files, uintptr(theirs))
		if err := unix.SetNonblock(ours, true); err != nil {
			return fmt.Errorf("pipe: %w", err)
		}
	}
	handed := inherited(ctx)
	for _, f := range handed {
		files = append(files, f.Fd())
	}
	pidfd := -1
	attr := &syscall.ProcAttr{Env: environ, Files: files, Sys: &syscall.SysProcAttr{Setpgid: true, PidFD: &pidfd}}
	if root != "" {
		attr.Dir, attr.Sys.Chroot = "/", root
	}
	var err error
	c.pid, err = syscall.ForkExec(path, []string{path}, attr)
	runtime.KeepAlive(handed)
	if err != nil {
		return &fs.PathError{Op: "fork/exec", Path: path, Err: err}
	}
	if c.set(exited, pidfd); pidfd < 0 {
		c.watch()
	}
	return nil
}

// watch has a goroutine wait for the exit of the child.
func (c *child) watch() {
	go func() {
		for errors.Is(unix.Waitid(unix.P_PID, c.pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
		}
		c.gone.Store(true)
		c.waker.wake()
	}()
}

func (c *child) set(event, fd int) { c.events[event].Fd = int32(fd) } //nolint:gosec // RLIMIT_NOFILE is far below

func (c *child) open(event int) bool { return c.events[event].Fd >= 0 }

func (c *child) happened(event int) bool { return c.open(event) && c.events[event].Revents != 0 }

func (c *child) shut(event int) {
	if c.open(event) {
		_ = unix.Close(int(c.events[event].Fd))
		c.set(event, -1)
	}
}

// close gives up what is left of c, which has been reaped or never ran.
func (c *child) close() {
	c.set(woken, -1)
	c.waker.close()
	for event := exited; event <= onStderr; event++ {
		c.shut(event)
	}
}

// attend looks after c until it has exited, and says how. When ctx ends, or c
// prints too much, it asks c to end, and insists after grace. Then end is why
// ctx has ended, if it has.
func (c *child) attend(ctx context.Context, input []byte, grace func(context.Context) time.Duration) (status, end error) {
	stop := context.AfterFunc(ctx, c.waker.wake)
	defer stop()
	c.input = input
	c.write()
	var late time.Time // when to insist
	asked, killed := false, false
	for !c.hasExited() {
		c.wait(late)
		c.write()
		c.read()
		switch {
		case !asked && (ctx.Err() != nil || c.stdout.over):
			_ = unix.Kill(-c.pid, unix.SIGTERM)
			late, asked = time.Now().Add(grace(ctx)), true
		case asked && !killed && !time.Now().Before(late):
			_ = unix.Kill(-c.pid, unix.SIGKILL)
			late, killed = time.Time{}, true
		}
	}
	if asked {
		// What the plugin started is in its group, and dies with it. It has not
		// been reaped: its number cannot be another's.
		_ = unix.Kill(-c.pid, unix.SIGKILL)
	}
	end = ctxErr(ctx) // before draining: what ends then has not stopped the plugin
	return c.reap(), end
}

// wait waits until something happens, or until the time is late unless that is
// zero.
func (c *child) wait(late time.Time) {
	timeout := -1
	if !late.IsZero() {
		timeout = int(max(0, time.Until(late).Milliseconds()+1))
	}
	if n, _ := unix.Poll(c.events[:], timeout); n <= 0 { // late, or interrupted
		for i := range c.events {
			c.events[i].Revents = 0
		}
	}
	if c.happened(woken) {
		c.waker.rest()
	}
}

// hasExited reports whether c has exited. It has not been reaped.
func (c *child) hasExited() bool {
	if c.gone.Load() {
		return true
	}
	if !c.happened(exited) {
		return false
	}
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, c.pid, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
	if err == nil && info.Signo == 0 {
		// Before Linux 5.3 a pidfd is always ready.
		c.shut(exited)
		c.watch()
		return false
	}
	return !errors.Is(err, unix.EINTR)
}

func (c *child) reap() error {
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(c.pid, &ws, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return fmt.Errorf("wait: %w", err)
		case ws.Exited() && ws.ExitStatus() == 0:
			return nil
		default:
			return exitError(ws)
		}
	}
}

// An exitError is how a plugin ended that has not succeeded.
type exitError unix.WaitStatus

func (e exitError) Error() string {
	if ws := unix.WaitStatus(e); ws.Signaled() {
		return "signal: " + ws.Signal().String()
	}
	return fmt.Sprintf("exit status %d", unix.WaitStatus(e).ExitStatus())
}

// write writes what there is room for. A plugin that does not read its
// configuration is none of our concern: EPIPE is dropped.
func (c *child) write() {
	for c.open(toStdin) && len(c.input) > 0 {
		n, err := unix.Write(int(c.events[toStdin].Fd), c.input)
		switch {
		case err == nil:
			c.input = c.input[n:]
		case err == unix.EAGAIN:
			return
		case err != unix.EINTR:
			c.input = nil
		}
	}
	c.shut(toStdin)
}

// read takes what has been printed.
func (c *child) read() {
	for event := onStdout; event <= onStderr; event++ {
		if c.happened(event) {
			c.take(event)
		}
	}
}

// take takes what is in a pipe, at most as much as a pipe holds, so that a
// plugin that prints without end keeps nothing else from happening.
func (c *child) take(event int) {
	for left := maxPipe; left > 0; {
		n, err := unix.Read(int(c.events[event].Fd), c.buf[:])
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return
		case n <= 0:
			c.shut(event)
			return
		case event == onStdout:
			c.stdout.add(c.buf[:n])
		default:
			c.stderr.add(c.buf[:n])
			c.passed.add(c.buf[:n])
		}
		left -= max(n, 0)
	}
}

// drain reads stdout and stderr to their end, at most for limit; then it takes
// what is in them, and leaves the rest to whoever holds them. What takes the
// plugin's stderr is waited for a little longer.
func (c *child) drain(limit time.Duration) {
	c.shut(exited)
	c.shut(toStdin)
	for late := time.Now().Add(limit); c.open(onStdout) || c.open(onStderr); {
		if !time.Now().Before(late) {
			break
		}
		c.wait(late)
		c.read()
	}
	for event := onStdout; event <= onStderr; event++ {
		if c.open(event) {
			c.take(event)
		}
	}
	c.passed.end(max(limit, time.Second))
}

// A waker makes a descriptor readable, from any goroutine.
type waker struct {
	mu sync.Mutex // protects fd
	fd int        // of an eventfd; -1 when closed
}

func (w *waker) open() (err error) {
	if w.fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		w.fd = -1
		return fmt.Errorf("eventfd: %w", err)
	}
	return nil
}

func (w *waker) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fd >= 0 {
		_, _ = unix.Write(w.fd, binary.NativeEndian.AppendUint64(nil, 1))
	}
}

// rest makes the descriptor unreadable again.
func (w *waker) rest() {
	var count [8]byte
	_, _ = unix.Read(w.fd, count[:])
}

func (w *waker) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fd >= 0 {
		_ = unix.Close(w.fd)
		w.fd = -1
	}
}
