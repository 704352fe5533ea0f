package ifname

import (
	"errors"
	"fmt"
)

// What is wrong with a name; found with errors.Is in an [Error].
var (
	// ErrInvalid means that no interface can be given the name. CNI code 4.
	ErrInvalid = errors.New("not a valid interface name")

	// ErrTaken means that another interface has the name, or was promised it
	// in the same plan. CNI code 7.
	ErrTaken = errors.New("interface name already taken")
)

// ErrNetNS marks a namespace that CNI_NETNS names wrongly, as opposed to one
// that cannot be read.
var ErrNetNS = errors.New("not a network namespace")

// An Error reports a name that cannot be used, or a namespace whose names
// cannot be read. It is the only type of error that this package returns.
// It is not changed once returned, so goroutines may share it.
type Error struct {
	// Name is the interface name in question; empty when the empty name is
	// the mistake, and when NetNS is set.
	Name string

	// NetNS is the path of the network namespace that [Taken] could not read.
	NetNS string

	// Err says why. It is or wraps [ErrInvalid] or [ErrTaken] when the
	// matter is a name.
	Err error
}

// Error returns the name or the namespace, and why.
func (e *Error) Error() string {
	if e.NetNS != "" || (e.Name == "" && !errors.Is(e.Err, ErrInvalid)) {
		return fmt.Sprintf("network namespace %q: %v", e.NetNS, e.Err)
	}
	return fmt.Sprintf("%q: %v", e.Name, e.Err)
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// CNICode reports the CNI error code for e (SPEC, "Error"): 4 for
// [ErrInvalid], and for a path that does not exist or is no network namespace
// (the runtime's CNI_IFNAME and CNI_NETNS are environment); 7 for [ErrTaken];
// 5 for a namespace that cannot be read; 0, none, where errors.ErrUnsupported
// is the reason.
func (e *Error) CNICode() uint {
	switch {
	case errors.Is(e.Err, ErrInvalid), errors.Is(e.Err, ErrNetNS):
		return 4
	case errors.Is(e.Err, ErrTaken):
		return 7
	case errors.Is(e.Err, errors.ErrUnsupported):
		return 0
	}
	return 5
}
