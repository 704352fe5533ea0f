// Package fault makes the errors of packages whose callers need the text, the sentinels and
// the CNI code of an error, and no fields. An error type of a package's own is for fields.
package fault

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/terse"
)

// New returns a sentinel for [errors.Is], with its CNI code.
func New(code uint, text string) error { return &coded{errors.New(text), code} }

// With returns err with this CNI code instead of its own, or nil of nil.
func With(code uint, err error) error {
	if err == nil {
		return nil
	}
	return &coded{err, code}
}

// Reworded returns err with this text instead of its own.
func Reworded(text string, err error) error { return &reworded{err, text} }

// Or returns err, with this CNI code if it has none. It returns nil of nil.
func Or(code uint, err error) error { return With(Code(err, code), err) }

// Of returns err as the failure of an operation on a subject: "OP SUBJECT: ERR". An empty
// op or subject is left out. It returns nil of nil, and keeps the CNI code of err.
func Of(op, subject string, err error) error {
	if err == nil {
		return nil
	}
	if op != "" && subject != "" {
		op += " "
	}
	return &failed{op + subject, err}
}

// Code returns the first of [Codes], and otherwise the code for errors without.
func Code(err error, otherwise uint) uint {
	for code := range Codes(err) {
		return code
	}
	return otherwise
}

// Codes yields the CNI codes in the tree of err, in pre-order as [errors.As]: an error
// before what it wraps, joined errors from the first to the last. 0 is no code.
func Codes(err error) iter.Seq[uint] { return func(yield func(uint) bool) { walk(err, yield) } }

// walk reports whether to go on.
func walk(err error, yield func(uint) bool) bool {
	if code := own(err); code != types.ErrUnknown && !yield(code) {
		return false
	}
	switch e := err.(type) { //nolint:errorlint // this is the walk through the tree
	case *types.Error: // which may be a nil pointer and wraps nothing
	case interface{ Unwrap() error }:
		return walk(e.Unwrap(), yield)
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			if !walk(inner, yield) {
				return false
			}
		}
	}
	return true
}

// own returns the code that err has apart from what it wraps, or 0.
func own(err error) uint {
	switch e := err.(type) { //nolint:errorlint // walk comes past the errors that err wraps
	case *types.Error:
		if e != nil {
			return e.Code
		}
	case interface{ CNICode() uint }:
		return e.CNICode()
	}
	return types.ErrUnknown
}

// Ended reports whether err came about because a context had ended.
func Ended(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// ErrNotUndone is delegate.ErrNotUndone. Of an error without a code it makes code 999.
var ErrNotUndone = New(types.ErrInternal, "undoing it failed as well")

// NotUndone returns the error of an operation that failed with err, and could not be undone
// because of left. Its CNI code is that of err, and 11 if err is the end of a context.
func NotUndone(err, left error) error {
	if Ended(err) {
		err = Or(types.ErrTryAgainLater, err)
	}
	return &notUndoneError{err, left}
}

// A notUndoneError is one line, the cause first.
type notUndoneError struct{ err, left error }

func (e *notUndoneError) Error() string {
	return fmt.Sprintf("%s; %v: %s", terse.Line(e.err.Error()), ErrNotUndone, terse.Line(e.left.Error()))
}
func (e *notUndoneError) Unwrap() []error { return []error{e.err, ErrNotUndone, e.left} }

// coded is an error with a CNI code.
type coded struct {
	error
	code uint
}

func (e *coded) Unwrap() error { return e.error }
func (e *coded) CNICode() uint { return e.code }

// reworded is an error of another text.
type reworded struct {
	error
	text string
}

func (e *reworded) Error() string { return e.text }
func (e *reworded) Unwrap() error { return e.error }

// failed is a failed operation.
type failed struct {
	what string
	err  error
}

func (e *failed) Error() string { return e.what + ": " + e.err.Error() }
func (e *failed) Unwrap() error { return e.err }
