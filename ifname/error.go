package ifname

import (
	"errors"
	"fmt"
)

// What is wrong with a name; found with errors.Is in an [Error].
var (
	// ErrInvalid means that no interface can be given the name. CNI code 4.
	ErrInvalid = errors.New("not a valid interface name")

	// ErrTaken means that another interface has the name, or requests it in
	// the same plan. CNI code 7.
	ErrTaken = errors.New("interface name already taken")
)

// ErrNetNS means that there is no network namespace at the path given as CNI_NETNS.
// CNI code 4.
var ErrNetNS = errors.New("not a network namespace")

// An Error reports a name that cannot be used, or a namespace whose names cannot be
// read. Every error of this package is an *Error. Goroutines may share it.
type Error struct {
	// Name is the interface name that cannot be used. It is empty when NetNS is
	// set, and may be empty because an empty name cannot be used.
	Name string

	// NetNS is the path of the network namespace that [Taken] could not read.
	NetNS string

	// Err says why. For a name, it wraps [ErrInvalid] or [ErrTaken].
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

// CNICode reports the CNI error code for e (SPEC, "Error"): 4 for [ErrInvalid] and
// [ErrNetNS], because CNI_IFNAME and CNI_NETNS are environment variables; 7 for
// [ErrTaken]; 5 for a namespace that cannot be read; 0, no code, for
// [errors.ErrUnsupported].
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
