// Package coded makes errors with a CNI code, as package status finds it.
package coded

// An Error is Err with a text and a CNI code of its own.
type Error struct {
	Code uint
	Text string
	Err  error // what it wraps, or nil
}

func (e *Error) Error() string { return e.Text }
func (e *Error) Unwrap() error { return e.Err }

// CNICode returns the code.
func (e *Error) CNICode() uint { return e.Code }

// New returns an error for [errors.Is].
func New(code uint, text string) error { return &Error{Code: code, Text: text} }

// With returns err, which is not nil, with this code instead of its own.
func With(code uint, err error) error { return &Error{code, err.Error(), err} }
