package lifecycle

import (
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/scratch"
)

var (
	// ErrAdded means that the attachment has been added already: code 7.
	ErrAdded = errors.New("already added")

	// ErrNotAdded means that there is no attachment, or none that is whole:
	// code 7.
	ErrNotAdded = errors.New("not added")

	// ErrPlan means that a plan cannot be carried out: it is empty, is for
	// another container, or uses an interface name twice: code 7.
	ErrPlan = errors.New("impossible plan")

	// ErrNoList means that GC was not told which attachments are valid, so
	// that it must not take any for stale: code 7.
	ErrNoList = errors.New("no list of valid attachments")

	// ErrSuperseded is why the context of an ADD ended when a DEL of the same
	// attachment came in: code 11.
	ErrSuperseded = errors.New("superseded by a DEL")
)

// An Error is an operation on one attachment that failed.
type Error struct {
	Op  string      // "ADD", "CHECK", "DEL", "GC", "ATTACH" or "DETACH"
	Key scratch.Key // for GC, of the network alone or of a stale attachment
	Err error
}

func (e *Error) Error() string { return fmt.Sprintf("lifecycle: %s %s: %v", e.Op, e.Key, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// CNICode reports the CNI error code of the sentinels of this package, and 0
// for other causes: these have codes of their own.
func (e *Error) CNICode() uint {
	for _, invalid := range []error{ErrAdded, ErrNotAdded, ErrPlan, ErrNoList} {
		if e.Err == invalid || errors.Unwrap(e.Err) == invalid {
			return types.ErrInvalidNetworkConfig
		}
	}
	return types.ErrUnknown
}

// fail says that op on k failed because of err, or returns nil for nil.
func fail(op string, k scratch.Key, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Key: k, Err: err}
}
