package status

import (
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
)

// A ResultError reports a result that [Networks] cannot read. It is not changed
// once returned, so goroutines may share it.
type ResultError struct {
	Network string // the network's name, as passed to Networks
	Err     error  // what is wrong with its result
}

// Error returns "status: network", its name, and what is wrong.
func (e *ResultError) Error() string {
	return fmt.Sprintf("status: network %q: %v", e.Network, e.Err)
}

// Unwrap returns e.Err.
func (e *ResultError) Unwrap() error { return e.Err }

// CNICode reports the CNI error code 6, failed to decode content.
func (*ResultError) CNICode() uint { return types.ErrDecodingFailure }

var errNoResult = errors.New("no result")
