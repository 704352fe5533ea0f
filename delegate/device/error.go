package device

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// Why a request cannot be served.
var (
	// ErrNotAllocated is returned when the pod does not have the device, or as many
	// devices as its attachments need.
	ErrNotAllocated = errors.New("not allocated to the pod")

	// ErrInUse is returned when the pod has the device, but another of its attachments
	// uses it.
	ErrInUse = errors.New("in use by another attachment of the pod")
)

// An Error says which request cannot be served. It is the only type of error of
// [Allocate].
type Error struct {
	At        int // the index of the request
	Request   Request
	Asked     int      // how many requests are for the resource
	Allocated []string // the pod's devices of the resource, in their order
	Unknown   []string // the pod's devices of which nobody knows the resource, with ErrNotAllocated
	Err       error    // [ErrNotAllocated] or [ErrInUse]
}

// Error describes the failure in one line.
func (e *Error) Error() string {
	if e.Request.ID != "" {
		return fmt.Sprintf("resource %q: device %q is %v; %s", e.Request.Resource, e.Request.ID, e.Err, e.has(""))
	}
	more, free := "", ""
	if errors.Is(e.Err, ErrInUse) {
		more, free = "more ", ", not all of them free"
	}
	return fmt.Sprintf("resource %q: the pod's networks ask for %d %sof its devices; %s", e.Request.Resource, e.Asked, more, e.has(free))
}

// has says what the pod has.
func (e *Error) has(free string) string {
	text := "the pod's containers have none"
	if len(e.Allocated) > 0 {
		text = fmt.Sprintf("the pod's containers have %d%s: %s", len(e.Allocated), free, list(e.Allocated))
	}
	if len(e.Unknown) > 0 {
		text += "; the resource is not known of " + list(e.Unknown)
	}
	return text
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// CNICode reports the CNI error code for e. It is 7, because the pod's networks and its
// containers ask for different devices, or 11 (try again later) with Unknown devices.
func (e *Error) CNICode() uint {
	if len(e.Unknown) > 0 {
		return types.ErrTryAgainLater
	}
	return types.ErrInvalidNetworkConfig
}

// listed is how many IDs an error lists.
const listed = 8

func list(ids []string) string {
	var s strings.Builder
	for i, id := range ids {
		switch {
		case i == listed:
			fmt.Fprintf(&s, " and %d more", len(ids)-listed)
			return s.String()
		case i > 0:
			s.WriteString(", ")
		}
		s.WriteString(strconv.Quote(id))
	}
	return s.String()
}
