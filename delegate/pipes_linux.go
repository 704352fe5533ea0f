package delegate

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// pipes are the parent's ends of a plugin's standard files.
type pipes struct {
	stdin          *os.File
	ends           []*os.File // of stdout and stderr
	stdout, stderr *capture
	flooded        chan struct{}  // closed when stdout exceeds its limit
	feeder         sync.WaitGroup // until stdin is written, or closed
	readers        sync.WaitGroup // until stdout and stderr are at their end
}

// start starts cmd with pipes, and their readers. Nothing is written to its
// stdin yet.
func (p *Process) start(cmd *exec.Cmd) (*pipes, error) {
	ps := &pipes{
		stdout:  &capture{limit: p.maxStdout()},
		stderr:  &capture{limit: 4096, tail: true},
		flooded: make(chan struct{}),
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
	ps.readers.Go(func() {
		_, _ = io.Copy(ps.stdout, files[2])
		if ps.stdout.over() {
			close(ps.flooded)
		}
	})
	ps.readers.Go(func() {
		// Read to the end whatever becomes of it: a plugin must not block on it.
		_, _ = io.Copy(ps.stderr, io.TeeReader(files[4], &passed{to: p.Stderr, left: maxStderr}))
	})
	return ps, nil
}

// feed starts writing the plugin's configuration. A plugin that does not read
// it is none of our concern: EPIPE is dropped.
func (ps *pipes) feed(stdin []byte) {
	ps.feeder.Go(func() {
		_, _ = ps.stdin.Write(stdin)
		_ = ps.stdin.Close()
	})
}

// drain waits until stdout and stderr are at their end, at most for limit.
func (ps *pipes) drain(limit time.Duration) {
	atEnd := make(chan struct{})
	go func() {
		ps.readers.Wait()
		close(atEnd)
	}()
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-atEnd:
	case <-late.C:
	}
}

// close ends the feeder and the readers, and waits for them: they end at once,
// but for what takes the plugin's stderr. Where that blocks it is waited for
// until limit, and then left to itself.
func (ps *pipes) close(limit time.Duration) {
	_ = ps.stdin.Close()
	closeAll(ps.ends)
	ps.feeder.Wait()
	ps.drain(limit)
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

// passed hands on the first left bytes and drops the rest, and errors: stderr
// is information only.
type passed struct {
	to   io.Writer
	left int
}

func (p *passed) Write(b []byte) (int, error) {
	if p.to != nil && p.left > 0 {
		part := b[:min(len(b), p.left)]
		p.left -= len(part)
		_, _ = p.to.Write(part)
	}
	return len(b), nil
}
