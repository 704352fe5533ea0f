package plugin

import (
	"bytes"
	"context"
	"io"
	"time"

	"github.com/metacni/metacni/internal/cause"
)

// lateWrite is how long a write may take that begins after the context has ended. It
// is for the error object: whoever still reads has it at once.
const lateWrite = time.Second

// mayBlock reports whether stream, a stdin or stdout, may wait for somebody at its other
// end. Files, pipes and connections, which can be closed, may: a read or write that outlives
// its context ends with the process. Memory never waits. It is the caller's again when Run
// has returned, so that no read or write may outlive Run.
func mayBlock(stream any) bool {
	_, can := stream.(io.Closer)
	return can
}

// An output is a plugin's stdout, until ctx ends: a write to a full pipe blocks as
// long as nobody reads.
type output struct {
	ctx     context.Context //nolint:containedctx // io.Writer has no other place for it
	to      io.Writer
	blocked bool // a write was given up
}

// Write implements [io.Writer]. If ctx ends first, the error says why.
func (o *output) Write(b []byte) (int, error) {
	if o.blocked {
		return 0, cause.Of(o.ctx)
	}
	var n int
	var err error
	written := make(chan struct{})
	b = bytes.Clone(b)
	go func() {
		n, err = o.to.Write(b)
		close(written)
	}()
	ended, late := o.ctx.Done(), (<-chan time.Time)(nil)
	if o.ctx.Err() != nil {
		ended, late = nil, time.After(lateWrite)
	}
	select {
	case <-written:
		return n, err
	case <-ended:
	case <-late:
	}
	select {
	case <-written:
		return n, err
	default:
		o.blocked = true
		return 0, cause.Of(o.ctx)
	}
}
