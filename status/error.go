package status

import (
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
)

// A resultError is a result that [Networks] cannot read.
type resultError struct {
	network string
	err     error // what is wrong with its result
}

func (e *resultError) Error() string {
	return fmt.Sprintf("network %q: %v", e.network, e.err)
}

func (e *resultError) Unwrap() error { return e.err }

// CNICode reports the CNI error code 6, failed to decode content.
func (*resultError) CNICode() uint { return types.ErrDecodingFailure }

var errNoResult = errors.New("no result")
