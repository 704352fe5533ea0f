package autoconf

import (
	"context"
	"errors"
	"strconv"

	"github.com/containernetworking/cni/pkg/types"
)

// The conditions that a [Manager] meets, for [errors.Is]. Most are reported in
// [State.Degraded] and do not end [Manager.Run].
var (
	// ErrInvalid is returned when the fields of a Manager, or what its Render
	// gives, cannot be used. CNI code 7.
	ErrInvalid = errors.New("invalid")

	// ErrNoPrimary means that there is no network to publish a configuration
	// in front of: none is valid. CNI code 7.
	ErrNoPrimary = errors.New("no primary network")

	// ErrGone means that the primary network's file is gone, or that it is
	// refused now, and that there is another network, which takes its place
	// after [Manager.Grace]. CNI code 7.
	ErrGone = errors.New("the primary network is gone: another takes its place if it does not come back")

	// ErrBadPrimary means that the file of the primary network is there and
	// cannot be used any more; what was made of it before stays. CNI code 7,
	// or that of the cause.
	ErrBadPrimary = errors.New("the primary network cannot be used")

	// ErrOwn is why a file is passed over that is the published one, refers to
	// it, or holds a plugin of our own type. CNI code 7.
	ErrOwn = errors.New("is our own, or leads back to it")

	// ErrRefused is why a valid network is passed over: [Manager.Accept] says
	// no to it. CNI code 7.
	ErrRefused = errors.New("refused")

	// ErrNotReady means that the readiness file has not been made yet. CNI
	// code 11.
	ErrNotReady = errors.New("not ready: the readiness file does not exist")

	// ErrReadinessLost is returned by [Manager.Run] when the readiness file
	// has been there and was removed. CNI code 11.
	ErrReadinessLost = errors.New("the readiness file was removed")

	// ErrUndone means that the published file was changed or removed by
	// others, again, and is not restored yet. CNI code 11.
	ErrUndone = errors.New("changed or removed by others")

	// ErrShadowed means that another file's name sorts before that of the
	// published one, so that runtimes take the other. CNI code 7.
	ErrShadowed = errors.New("runtimes take another file first")

	// ErrLocked means that another Manager publishes. CNI code 11.
	ErrLocked = errors.New("another manager is at work")

	// ErrNotRegular is why something is passed over that has the name of a
	// configuration file and is no file: a directory, a FIFO and the like.
	ErrNotRegular = errors.New("not a regular file")

	// ErrTooLarge is why a file of more than 16 MiB is passed over.
	ErrTooLarge = errors.New("larger than 16 MiB")
)

// An Error is a failed operation. It is the only type of error that this
// package returns, and that [State] holds. Its text quotes paths and keys, and
// never other values of a configuration: they may be secret.
type Error struct {
	Op   string // what was attempted: "run", "find", "read", "render", "publish" and so on
	Path string // the file or directory it is about, if any
	Err  error
}

// Error returns `autoconf: what "which": why`.
func (e *Error) Error() string {
	s := "autoconf: " + e.Op
	if e.Path != "" {
		s += " " + strconv.Quote(e.Path)
	}
	return s + ": " + e.Err.Error()
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// CNICode reports the CNI error code for e (SPEC section "Error"): 11 for what
// may be well later, [ErrNotReady], [ErrReadinessLost], [ErrUndone],
// [ErrLocked] and a context that ended; else the code of the cause where it has
// one; 7 for the other conditions of this package, and 5 for failures of files.
func (e *Error) CNICode() uint {
	for _, later := range []error{ErrNotReady, ErrReadinessLost, ErrUndone, ErrLocked, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(e.Err, later) {
			return types.ErrTryAgainLater
		}
	}
	if coder := interface{ CNICode() uint }(nil); errors.As(e.Err, &coder) {
		return coder.CNICode()
	}
	for _, wrong := range []error{ErrInvalid, ErrNoPrimary, ErrGone, ErrBadPrimary, ErrOwn, ErrRefused, ErrShadowed} {
		if errors.Is(e.Err, wrong) {
			return types.ErrInvalidNetworkConfig
		}
	}
	return types.ErrIOFailure
}

// fail returns err as an *Error; nil stays nil.
func fail(op, path string, err error) error {
	if err == nil {
		return nil
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

func (b because) Error() string   { return b.what.Error() + ": " + b.why.Error() }
func (b because) Unwrap() []error { return []error{b.what, b.why} }
