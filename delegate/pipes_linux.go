package delegate

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// pipes are the parent's ends of a plugin's standard files.
type pipes struct {
	stdin          *os.File
	ends           []*os.File // of stdout and stderr
	stdout, stderr *capture
	passed         *passed
	flooded        chan struct{}    // closed when stdout exceeds its limit
	feeder         sync.WaitGroup   // until stdin is written, or closed
	read           [2]chan struct{} // closed when all of stdout, of stderr is read
}

// start starts cmd with pipes, and their readers. Nothing is written to its
// stdin yet.
func (p *Process) start(cmd *exec.Cmd) (*pipes, error) {
	ps := &pipes{
		stdout:  &capture{limit: p.maxStdout()},
		stderr:  &capture{limit: 4096, tail: true},
		passed:  &passed{to: p.Stderr, left: maxStderr},
		flooded: make(chan struct{}),
		read:    [2]chan struct{}{make(chan struct{}), make(chan struct{})},
	}
	var files [6]*os.File
	for i := 0; i < len(files); i += 2 {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(files[:i])
			return nil, err
		}
		files[i], files[i+1] = r, w
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = files[0], files[3], files[5]
	err := cmd.Start()
	closeAll([]*os.File{files[0], files[3], files[5]})
	if err != nil {
		closeAll([]*os.File{files[1], files[2], files[4]})
		return nil, err
	}
	ps.stdin, ps.ends = files[1], []*os.File{files[2], files[4]}
	go func() {
		defer close(ps.read[0])
		if copyAll(ps.stdout, files[2]); ps.stdout.over() {
			close(ps.flooded)
		}
	}()
	go func() {
		defer close(ps.read[1])
		// Read to the end whatever becomes of it: a plugin must not block on it.
		copyAll(io.MultiWriter(ps.stderr, ps.passed), files[4])
	}()
	return ps, nil
}

// copyAll writes to w what comes out of pipe until its end, or until its read
// deadline. What is in the pipe by then is not lost: it is what a plugin that
// has exited has printed.
func copyAll(w io.Writer, pipe *os.File) {
	if _, err := io.Copy(w, pipe); !errors.Is(err, os.ErrDeadlineExceeded) {
		return
	}
	buf := make([]byte, 64<<10)
	for left := maxPipe; left > 0; {
		n := readNow(pipe, buf)
		if n <= 0 {
			return
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return
		}
		left -= n
	}
}

// maxPipe is the most that a pipe holds, in bytes: what its writers print after
// that may be lost.
const maxPipe = 1 << 20

// readNow reads what is in pipe, whatever its read deadline, and returns 0 or
// less where there is nothing. Nothing else is done while it holds the file, so
// that the file can be closed meanwhile.
func readNow(pipe *os.File, buf []byte) (n int) {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { // where it fails, n stays 0
		for again := true; again; again = errors.Is(err, unix.EINTR) {
			n, err = unix.Read(int(fd), buf) // does not block: it is our end
		}
	})
	return n
}

// feed starts writing the plugin's configuration. A plugin that does not read
// it is none of our concern: EPIPE is dropped.
func (ps *pipes) feed(stdin []byte) {
	ps.feeder.Go(func() {
		_, _ = ps.stdin.Write(stdin)
		_ = ps.stdin.Close()
	})
}

// drain waits until stdout and stderr are at their end, at most for limit. Then
// it takes what is in them, and leaves the rest to whoever holds them. Where
// what takes the plugin's stderr blocks, it is waited for a little longer, and
// then left to itself: the write that blocks is the last.
func (ps *pipes) drain(limit time.Duration) {
	if ps.wait(limit) {
		return
	}
	for _, end := range ps.ends {
		_ = end.SetReadDeadline(time.Now())
	}
	<-ps.read[0]
	ps.wait(max(limit, time.Second))
	ps.passed.stop.Store(true)
}

// wait reports whether stdout and stderr were read within limit.
func (ps *pipes) wait(limit time.Duration) bool {
	late := time.NewTimer(limit)
	defer late.Stop()
	for _, read := range ps.read {
		select {
		case <-read:
		case <-late.C:
			return false
		}
	}
	return true
}

// close ends the feeder and what is left of the readers.
func (ps *pipes) close() {
	_ = ps.stdin.Close()
	closeAll(ps.ends)
	ps.feeder.Wait()
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

var errFull = io.ErrShortBuffer

// A capture keeps what is written to it: everything up to limit bytes and then
// errFull, or with tail the last limit bytes.
type capture struct {
	limit int
	tail  bool

	mu   sync.Mutex // protects what follows
	kept bytes.Buffer
	lost bool // there was more than limit
}

func (c *capture) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	over := c.kept.Len() + len(b) - c.limit
	c.lost = c.lost || over > 0
	if c.lost && !c.tail {
		return 0, errFull
	}
	c.kept.Write(b)
	c.kept.Next(max(0, over))
	return len(b), nil
}

// over reports whether more than the limit was written.
func (c *capture) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// lastLine returns the last line that is not empty, or nothing if its beginning
// is lost.
func (c *capture) lastLine() []byte {
	text := bytes.TrimSpace(c.bytes())
	i := bytes.LastIndexByte(text, '\n')
	if i < 0 && c.over() {
		return nil
	}
	return text[i+1:]
}

func (c *capture) bytes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.kept.Bytes())
}

// passed hands on the first left bytes, until stop, and drops the rest, and
// errors: stderr is information only.
type passed struct {
	to   io.Writer
	left int
	stop atomic.Bool
}

func (p *passed) Write(b []byte) (int, error) {
	if p.to != nil && p.left > 0 && !p.stop.Load() {
		part := b[:min(len(b), p.left)]
		p.left -= len(part)
		_, _ = p.to.Write(part)
	}
	return len(b), nil
}
