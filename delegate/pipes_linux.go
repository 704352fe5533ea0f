package delegate

import (
	"bytes"
	"fmt"
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
	flooded        chan error     // one error when stdout exceeds its limit
	readers        sync.WaitGroup // until stdout and stderr are at their end
}

// start starts cmd with pipes, and their readers. Nothing is written to its
// stdin yet.
func (p *Process) start(cmd *exec.Cmd) (*pipes, error) {
	ps := &pipes{
		stdout:  &capture{limit: p.maxStdout()},
		stderr:  &capture{limit: 4096, tail: true},
		flooded: make(chan error, 1),
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
		if _, err := io.Copy(ps.stdout, files[2]); err == errFull {
			ps.flooded <- fmt.Errorf("more than %d bytes on stdout", ps.stdout.limit)
		}
	})
	ps.readers.Go(func() {
		// Read to the end whatever becomes of it: a plugin must not block on it.
		_, _ = io.Copy(ps.stderr, io.TeeReader(files[4], &passed{to: p.Stderr, left: maxStderr}))
	})
	return ps, nil
}

// feed writes the plugin's configuration. A plugin that does not read it is
// none of our concern: EPIPE is dropped.
func (ps *pipes) feed(stdin []byte) {
	_, _ = ps.stdin.Write(stdin)
	_ = ps.stdin.Close()
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

// close ends the feeder and the readers, and waits for the readers: they end
// at once unless what takes the plugin's stderr blocks, which has limit.
func (ps *pipes) close(limit time.Duration) {
	_ = ps.stdin.Close()
	closeAll(ps.ends)
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

	mu   sync.Mutex
	kept bytes.Buffer
}

func (c *capture) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.tail && c.kept.Len()+len(b) > c.limit {
		return 0, errFull
	}
	c.kept.Write(b)
	if over := c.kept.Len() - c.limit; over > 0 {
		c.kept.Next(over)
	}
	return len(b), nil
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
