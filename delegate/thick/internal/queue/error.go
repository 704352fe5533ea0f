package queue

import (
	"context"
	"errors"

	"github.com/containernetworking/cni/pkg/types"
)

var (
	// ErrFull means that the queue has [Cap] requests. Its CNI code is 11.
	ErrFull = errors.New("the queue is full")
	// ErrUnread means that no daemon has marked the directory as one that it
	// reads, so that nobody would do a DEL there. Its CNI code is 11.
	ErrUnread = errors.New("no daemon reads this directory (it has no file " + markName + "): use the queue directory of the daemon")
	// ErrOther means that another daemon reads the queue. Its CNI code is 11.
	ErrOther = errors.New("another daemon reads this directory: give each daemon a queue directory of its own")
	// ErrDamaged means that files have a DEL that can never be done. Its CNI code
	// is 5.
	ErrDamaged = errors.New("damaged")
	// ErrVersion means that a file was written by another version of the shim.
	// Its CNI code is 5.
	ErrVersion = errors.New("written by another version")
	// ErrForeign means that files in the directory do not belong to the queue.
	ErrForeign = errors.New("not files of the queue")

	errConfig  = errors.New("the configuration is not a JSON object with a string as its name")
	errTooMuch = errors.New("the request is too large")
)

// An Error is a failed operation on a queue. It quotes nothing of a
// configuration.
type Error struct {
	Op   string // "put", "list" or "remove", for instance
	Path string // the directory, or the file in it
	Err  error
}

// Error returns "DEL queue: OP path: why".
func (e *Error) Error() string { return "DEL queue: " + e.Op + " " + e.Path + ": " + e.Err.Error() }

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// CNICode returns the CNI error code for e: 6 for a request that cannot be encoded,
// 11 for [ErrFull], [ErrUnread], [ErrOther] and a context that ended, and otherwise 5, an I/O
// failure.
func (e *Error) CNICode() uint {
	switch {
	case errors.Is(e.Err, errConfig), errors.Is(e.Err, errTooMuch):
		return types.ErrDecodingFailure
	case errors.Is(e.Err, ErrFull), errors.Is(e.Err, ErrUnread), errors.Is(e.Err, ErrOther), errors.Is(e.Err, context.Canceled), errors.Is(e.Err, context.DeadlineExceeded):
		return types.ErrTryAgainLater
	}
	return types.ErrIOFailure
}
