package autoconf

import (
	"errors"
	"io/fs"
	"strconv"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/netconf"
)

// The conditions that a [Manager] meets, for [errors.Is]. Every error of this package
// has a CNI code: that of its cause, or 5 for failures of files. Its text quotes paths and
// keys, and never other values of a configuration: they may be secret.
var (
	// ErrInvalid is returned when the fields of a Manager cannot be used. CNI
	// code 7.
	ErrInvalid = fault.New(types.ErrInvalidNetworkConfig, "invalid")

	// ErrNoPrimary means that no file has a network that can be the primary
	// one. CNI code 7.
	ErrNoPrimary = fault.New(types.ErrInvalidNetworkConfig, "no primary network")

	// ErrNotReady means that the readiness file has not been made yet. CNI
	// code 11.
	ErrNotReady = fault.New(types.ErrTryAgainLater, "not ready: the readiness file does not exist")

	// ErrReadinessLost is returned by [Manager.Run] when the readiness file
	// existed and was removed. CNI code 11.
	ErrReadinessLost = fault.New(types.ErrTryAgainLater, "the readiness file was removed")

	// ErrLocked means that another Manager publishes, or another method of the
	// same Manager works. CNI code 11.
	ErrLocked = fault.New(types.ErrTryAgainLater, "another manager is at work")
)

// What else can be in [State.Degraded] and [State.Skipped].
var (
	// The primary network's file is gone, or refused, and another network takes
	// its place soon.
	errGone = fault.New(types.ErrInvalidNetworkConfig, "the primary network is gone: another takes its place if it does not come back")

	// The primary network's file is there and cannot be used any more.
	errBadPrimary = fault.New(types.ErrInvalidNetworkConfig, "the primary network cannot be used")

	// Another file's name sorts before that of the published one.
	errShadowed = fault.New(types.ErrInvalidNetworkConfig, "runtimes take another file first")

	// Others have changed or removed the published file again and again.
	errUndone = fault.New(types.ErrTryAgainLater, "changed or removed by others")

	errOwn        = fault.New(types.ErrInvalidNetworkConfig, "has our own plugin, or refers to the published file")
	errRefused    = fault.New(types.ErrInvalidNetworkConfig, "refused")
	errNotRegular = errors.New("not a regular file")
)

// fail returns err as the failure of an operation on the file at path, if any; nil stays
// nil.
func fail(op, path string, err error) error {
	if err == nil {
		return nil
	}
	if p, ok := err.(*fs.PathError); ok && path != "" { //nolint:errorlint // itself, not one in it
		err = p.Err
	}
	if path != "" {
		path = strconv.Quote(path)
	}
	return fault.Or(types.ErrIOFailure, fault.Of(op, path, err))
}

// A because is a condition with its cause: it is both to errors.Is, and has the code of
// the cause if that has one.
type because struct{ what, why error }

func (b because) Error() string {
	var says *netconf.Error
	if b.what == ErrInvalid && errors.As(b.why, &says) { //nolint:errorlint // the condition is one of ours
		return b.why.Error() // which says that a configuration is invalid
	}
	return b.what.Error() + ": " + b.why.Error()
}

func (b because) Unwrap() []error { return []error{b.why, b.what} }
