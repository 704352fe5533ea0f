package delegate

import (
	"bytes"
	"io"
	"sync"
	"time"
)

// A capture keeps what is written to it: everything up to limit bytes, or with
// tail the last limit bytes.
type capture struct {
	limit int
	tail  bool
	kept  bytes.Buffer
	over  bool // there was more than limit
}

func (c *capture) add(b []byte) {
	over := c.kept.Len() + len(b) - c.limit
	c.over = c.over || over > 0
	if c.over && !c.tail {
		return
	}
	c.kept.Write(b)
	c.kept.Next(max(0, over))
}

// lastLine returns the last line that is not empty. It returns nothing if the
// beginning of that line has not been kept.
func (c *capture) lastLine() []byte {
	text := bytes.TrimSpace(c.kept.Bytes())
	i := bytes.LastIndexByte(text, '\n')
	if i < 0 && c.over {
		return nil
	}
	return text[i+1:]
}

// passed forwards at most left bytes to a writer and ignores its errors: stderr
// is information only. A goroutine writes them, so that a writer that blocks does
// not block the caller.
type passed struct {
	to io.Writer

	mu    sync.Mutex // protects what follows
	left  int
	queue []byte
	done  chan struct{} // closed when the goroutine ends; nil without one
}

func (p *passed) add(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b = b[:min(len(b), p.left)]
	if p.to == nil || len(b) == 0 {
		return
	}
	p.left -= len(b)
	p.queue = append(p.queue, b...)
	if p.done == nil {
		p.done = make(chan struct{})
		go p.pass()
	}
}

func (p *passed) pass() {
	for {
		p.mu.Lock()
		text := p.queue
		p.queue = nil
		if len(text) == 0 {
			close(p.done)
			p.done = nil
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		_, _ = p.to.Write(text)
	}
}

// end waits until everything is written, for limit at most. After that nothing
// more is written.
func (p *passed) end(limit time.Duration) {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	if done == nil {
		return
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
		p.mu.Lock()
		p.left, p.queue = 0, nil
		p.mu.Unlock()
	}
}
