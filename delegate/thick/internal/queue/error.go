package queue

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/fault"
)

var (
	// ErrFull means that the queue has [Cap] DELs.
	ErrFull = fault.New(types.ErrTryAgainLater, "the queue is full")
	// ErrUnread means that no daemon has marked the directory as one that it
	// reads, so that nobody would do a DEL there.
	ErrUnread = fault.New(types.ErrTryAgainLater, "no daemon reads this directory (it has no file "+markName+"): use the queue directory of the daemon")
	// ErrOther means that another daemon reads the queue.
	ErrOther = fault.New(types.ErrTryAgainLater, "another daemon reads this directory: give each daemon a queue directory of its own")
	// ErrDamaged means that files have a DEL that can never be done.
	ErrDamaged = fault.New(types.ErrIOFailure, "damaged")
	// ErrVersion means that a file was written by another version of the shim.
	ErrVersion = fault.New(types.ErrIOFailure, "written by another version")
	// ErrForeign means that files in the directory do not belong to the queue.
	ErrForeign = fault.New(types.ErrIOFailure, "not files of the queue")

	errConfig  = fault.New(types.ErrDecodingFailure, "the configuration is not a JSON object with a string as its name")
	errTooMuch = fault.New(types.ErrDecodingFailure, "the request is too large")
)

// fail returns err as "DEL queue: OP PATH: ERR", or nil if err is nil. An empty name
// means the directory. The CNI code is 5, an I/O failure, unless err has one or is the
// end of a context.
func (q Queue) fail(op, name string, err error) error {
	otherwise := types.ErrIOFailure
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		otherwise = types.ErrTryAgainLater
	}
	return fault.Of("DEL queue: "+op, filepath.Join(q.dir, name), fault.Or(otherwise, err))
}
