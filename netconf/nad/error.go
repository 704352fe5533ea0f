package nad

import (
	"errors"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/netconf"
)

// ErrForbidden is returned when a [Policy] or [Rules] do not allow what a pod or a
// definition asks for. CNI code 7.
var ErrForbidden = fault.New(types.ErrInvalidNetworkConfig, "not allowed")

// An Error says what is wrong with which definition. It is the only type of error
// that this package returns. Its text names keys and quotes names, never other values.
type Error struct {
	Ref Ref   // the definition; zero where that is not known, or its name is not valid
	Err error // what is wrong, most often a [*netconf.Error], with its CNI code
}

// Error describes the failure in one line.
func (e *Error) Error() string {
	if e.Ref == (Ref{}) {
		return e.Err.Error()
	}
	return "NAD " + e.Ref.String() + ": " + e.Err.Error()
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// invalid is an error about key, to be wrapped in an Error.
func invalid(key, why string) error {
	return &netconf.Error{Kind: netconf.ErrInvalid, Key: key, Err: errors.New(why)}
}

// about returns err, of this package or of netconf, as an error about r.
func about(r Ref, err error) error {
	e := &Error{Err: err}
	var own *Error
	if errors.As(err, &own) {
		*e = *own
	}
	e.Ref = r
	return e
}
