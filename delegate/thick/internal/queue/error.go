package queue

import (
	"context"
	"errors"

	"github.com/containernetworking/cni/pkg/types"
)

var (
	// ErrFull means that there are [Cap] requests. Its CNI code is 11.
	ErrFull = errors.New("the queue is full")
	// ErrDamaged means that there are files which cannot be read back. Its CNI
	// code is 5.
	ErrDamaged = errors.New("damaged")

	errConfig  = errors.New("the configuration is not a JSON object that says its name as a string")
	errTooMuch = errors.New("too large a request")
)

// An Error is a failed operation on a queue. It holds nothing of the request
// but the container and the interface.
type Error struct {
	Op   string // "put", "replay", or "lock" where the wait for it ended
	Path string // the directory, or the file in it
	Err  error
}

// Error returns "queue: OP path: why".
func (e *Error) Error() string { return "queue: " + e.Op + " " + e.Path + ": " + e.Err.Error() }

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// CNICode returns the CNI error code for e: 6 for a request that cannot be
// understood, 11 for [ErrFull] and for a context that ended, and otherwise 5,
// an I/O failure.
func (e *Error) CNICode() uint {
	switch {
	case errors.Is(e.Err, errConfig), errors.Is(e.Err, errTooMuch):
		return types.ErrDecodingFailure
	case errors.Is(e.Err, ErrFull), errors.Is(e.Err, context.Canceled), errors.Is(e.Err, context.DeadlineExceeded):
		return types.ErrTryAgainLater
	}
	return types.ErrIOFailure
}
