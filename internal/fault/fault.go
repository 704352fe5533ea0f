// Package fault makes the errors of packages whose callers need the text, the sentinels and
// the CNI code of an error, and no fields. An error type of a package's own is for fields.
package fault

import (
	"errors"

	"github.com/containernetworking/cni/pkg/types"
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

// Code returns the CNI code of the outermost error in the tree of err that has one, and
// otherwise the code for errors without.
func Code(err error, otherwise uint) uint {
	var coder interface{ CNICode() uint }
	var cni *types.Error
	switch {
	case errors.As(err, &coder) && coder.CNICode() != 0:
		return coder.CNICode()
	case errors.As(err, &cni):
		return cni.Code
	}
	return otherwise
}

// coded is an error with a CNI code.
type coded struct {
	error
	code uint
}

func (e *coded) Unwrap() error { return e.error }
func (e *coded) CNICode() uint { return e.code }

// failed is a failed operation.
type failed struct {
	what string
	err  error
}

func (e *failed) Error() string { return e.what + ": " + e.err.Error() }
func (e *failed) Unwrap() error { return e.err }
