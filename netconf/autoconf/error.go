package autoconf

import (
	"context"
	"errors"
	"io/fs"
	"strconv"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/bounds"
	"github.com/metacni/metacni/netconf"
)

// The conditions that a [Manager] meets, for [errors.Is].
var (
	// ErrInvalid is returned when the fields of a Manager cannot be used. CNI
	// code 7.
	ErrInvalid = errors.New("invalid")

	// ErrNoPrimary means that no file has a network that can be the primary
	// one. CNI code 7.
	ErrNoPrimary = errors.New("no primary network")

	// ErrNotReady means that the readiness file has not been made yet. CNI
	// code 11.
	ErrNotReady = errors.New("not ready: the readiness file does not exist")

	// ErrReadinessLost is returned by [Manager.Run] when the readiness file
	// existed and was removed. CNI code 11.
	ErrReadinessLost = errors.New("the readiness file was removed")

	// ErrShadowed means that another file's name sorts before that of the
	// published one, so that runtimes take the other. CNI code 7.
	ErrShadowed = errors.New("runtimes take another file first")

	// ErrLocked means that another Manager publishes, or another method of the
	// same Manager works. CNI code 11.
	ErrLocked = errors.New("another manager is at work")
)

// What else can be in [State.Degraded] and [State.Skipped].
var (
	// The primary network's file is gone, or refused, and another network takes
	// its place soon.
	errGone = errors.New("the primary network is gone: another takes its place if it does not come back")

	// The primary network's file is there and cannot be used any more.
	errBadPrimary = errors.New("the primary network cannot be used")

	// Others have changed or removed the published file again and again.
	errUndone = errors.New("changed or removed by others")

	errOwn        = errors.New("has our own plugin, or refers to the published file")
	errRefused    = errors.New("refused")
	errNotRegular = errors.New("not a regular file")
	errTooLarge   = bounds.Above(sizeLimit)
)

// An Error is a failed operation. Every error that this package returns, or that
// [State] holds, is an *Error. Its text quotes paths and keys, and never other
// values of a configuration: they may be secret.
type Error struct {
	Op   string // what was attempted: "run", "find", "read", "render", "publish" and so on
	Path string // the file or directory it is about, if any
	Err  error
}

// Error returns `what "which": why`.
func (e *Error) Error() string {
	s := e.Op
	if e.Path != "" {
		s += " " + strconv.Quote(e.Path)
	}
	return s + ": " + e.Err.Error()
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// CNICode reports the CNI error code for e (SPEC section "Error"): 11 for what
// may be well later, [ErrNotReady], [ErrReadinessLost], [errUndone],
// [ErrLocked] and a context that ended; else the code of the cause where it has
// one; 7 for the other conditions of this package, and 5 for failures of files.
func (e *Error) CNICode() uint {
	for _, later := range []error{ErrNotReady, ErrReadinessLost, errUndone, ErrLocked, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(e.Err, later) {
			return types.ErrTryAgainLater
		}
	}
	if coder := interface{ CNICode() uint }(nil); errors.As(e.Err, &coder) {
		return coder.CNICode()
	}
	for _, wrong := range []error{ErrInvalid, ErrNoPrimary, errGone, errBadPrimary, errOwn, errRefused, ErrShadowed} {
		if errors.Is(e.Err, wrong) {
			return types.ErrInvalidNetworkConfig
		}
	}
	return types.ErrIOFailure
}

// fail returns err as an *Error; nil stays nil. Of an error of the file at path,
// it keeps the cause.
func fail(op, path string, err error) error {
	if err == nil {
		return nil
	}
	if p, ok := err.(*fs.PathError); ok && path != "" { //nolint:errorlint // itself, not one in it
		err = p.Err
	}
	return &Error{Op: op, Path: path, Err: err}
}

// asError returns err as an [*Error], itself if it is one.
func asError(op, path string, err error) error {
	if e, ok := err.(*Error); ok { //nolint:errorlint // a wrapped one keeps its wrapping
		return e
	}
	return fail(op, path, err)
}

// join is errors.Join that returns an [*Error].
func join(op, path string, errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return fail(op, path, err)
	}
	return nil
}

// A because is a condition with its cause: it is both to errors.Is.
type because struct{ what, why error }

func (b because) Error() string {
	var says *netconf.Error
	if b.what == ErrInvalid && errors.As(b.why, &says) { //nolint:errorlint // the condition is one of ours
		return b.why.Error() // which says that a configuration is invalid
	}
	return b.what.Error() + ": " + b.why.Error()
}

func (b because) Unwrap() []error { return []error{b.what, b.why} }
