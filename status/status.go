// Package status turns errors into CNI error objects, and results into the network
// status lists that operators read.
//
// An error has a CNI code if it has a method CNICode() uint. So a package can give
// its errors codes without importing this one, and this package imports no other
// public package of the module.
package status

import (
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/internal/terse"
)

// Codes that answer a STATUS (SPEC, "STATUS: Check plugin status").
const (
	codeNotReady uint = 50 // cannot service ADD
	codeLimited  uint = 51 // and existing containers may be cut off
)

// Code returns the CNI error code for err, from 1 up, or 0 when err is nil.
//
// It is the code of the first error in err's tree that has one: a
// [*types.Error] whose Code is not 0, or an error with a method
//
//	CNICode() uint
//
// that does not return 0. The tree is searched in pre-order, as [errors.As]
// does: an error before what it wraps, joined errors from the first to the
// last. Where none has a code, the end of a context ([context.Canceled],
// [context.DeadlineExceeded]) is 11, try again later, and anything else 999,
// internal.
//
// Code accepts any error.
func Code(err error) uint {
	if err == nil {
		return 0
	}
	if fault.Ended(err) {
		return fault.Code(err, types.ErrTryAgainLater)
	}
	return fault.Code(err, types.ErrInternal)
}

// Error returns err as one error object for the runtime: a [*types.Error] with the
// failing plugin's code, as [Code] finds it, and the full error text, in one line.
// It returns nil for nil. It returns a [*types.Error] that has a code unchanged,
// with its details.
//
// Call it for every error that a plugin's callback returns. Without it, package
// skel drops the text around an inner [*types.Error], and all joined errors except
// the first. The result does not wrap err: errors.Is and errors.As find no causes
// in it.
func Error(err error) error {
	if err == nil {
		return nil
	}
	//nolint:errorlint // Only err itself keeps its details; a wrapped one would lose the text around it.
	if e, ok := err.(*types.Error); ok && e != nil && e.Code != 0 {
		return e
	}
	return types.NewError(Code(err), text(err), "")
}

// NotReady returns err as the answer to a STATUS. Its [Code] is 51 (not available,
// and existing containers may have limited connectivity) if any error in err's tree
// has that code, otherwise 50 (not available). NotReady returns nil for nil.
//
// The text is err's, in one line. errors.Is and errors.As find in it what they find
// in err; only package skel finds the new code with the whole text.
func NotReady(err error) error {
	if err == nil {
		return nil
	}
	for code := range fault.Codes(err) {
		if code == codeLimited {
			return &notReadyError{err: err, code: codeLimited}
		}
	}
	return &notReadyError{err: err, code: codeNotReady}
}

// A notReadyError gives err another code.
type notReadyError struct {
	err  error
	code uint
}

func (e *notReadyError) Error() string { return text(e.err) }
func (e *notReadyError) Unwrap() error { return e.err }
func (e *notReadyError) CNICode() uint { return e.code }

// As keeps skel from finding a *types.Error further in, with another code.
func (e *notReadyError) As(target any) bool {
	t, ok := target.(**types.Error)
	if ok {
		*t = types.NewError(e.code, text(e.err), "")
	}
	return ok
}

// text returns err's text in one line, also for the nil *types.Error that a function
// returning that type makes of success.
func text(err error) string {
	//nolint:errorlint // A nil pointer further in is its wrapper's affair.
	if e, ok := err.(*types.Error); ok && e == nil {
		return "unknown error"
	}
	return terse.Line(err.Error())
}
