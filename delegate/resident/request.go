package resident

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/netconf"
)

// The operations of a [Request].
const (
	Attach = "attach" // attach one more network to a running container
	Detach = "detach" // detach it again
)

// A Request asks the host to change the networks of a running container.
type Request struct {
	Op          string `json:"op"` // [Attach] or [Detach]
	ContainerID string `json:"containerID"`

	// IfName names the interface. For Attach it may be empty: then the host
	// chooses a name.
	IfName string `json:"ifname,omitempty"`

	// Network, Args and CapabilityArgs are those of a [delegate.Attachment].
	// Detach ignores them.
	Network        netconf.Network            `json:"network,omitzero"`
	Args           string                     `json:"args,omitempty"`
	CapabilityArgs map[string]json.RawMessage `json:"capabilityArgs,omitempty"`
}

// Request asks the host for a change and returns when it is done. An error of
// the host is a [*types.Error].
//
// A command may call Request. But the host runs one operation of a container at
// a time: a command must not wait for a request for its own container.
//
// It fails with [ErrGone] when p is not connected, or Synchronize has not
// returned yet, and with [errors.ErrUnsupported] when the host takes no requests.
// When it fails with [ErrLost], or because ctx ends, the host may have done the
// change.
func (p *Plugin) Request(ctx context.Context, r Request) error {
	p.mu.Lock()
	s := p.session
	p.mu.Unlock()
	err := s.request(ctx, r)
	var said *types.Error
	if err == nil || errors.As(err, &said) {
		return err
	}
	return &Error{Op: "request", Which: p.info().String(), Err: err}
}

func (s *session) request(ctx context.Context, r Request) error {
	switch {
	case s == nil:
		return ErrGone
	case !s.requests:
		return errors.ErrUnsupported
	case !s.told.Load():
		return fmt.Errorf("%w yet: Synchronize has not returned", ErrGone)
	}
	_, err := s.mux.call(ctx, callRequest, r)
	return err
}

// check refuses an invalid request.
func (r Request) check() error {
	invalid := func(format string, args ...any) error {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "invalid request: "+fmt.Sprintf(format, args...), "")
	}
	if r.Op != Attach && r.Op != Detach {
		return invalid("operation %.40q is neither %q nor %q", r.Op, Attach, Detach)
	}
	if err := utils.ValidateContainerID(r.ContainerID); err != nil {
		return invalid("%s: %.80q", err.Msg, r.ContainerID)
	}
	if r.IfName != "" || r.Op == Detach {
		if err := utils.ValidateInterfaceName(r.IfName); err != nil {
			return invalid("%s: %.40q", err.Msg, r.IfName)
		}
	}
	if r.Op == Attach && r.Network.IsZero() {
		return types.NewError(types.ErrInvalidNetworkConfig, "invalid request: no network to attach", "")
	}
	return nil
}

// answer handles a call of e. A panic becomes an error: it ends neither the host
// nor other calls.
func (h *Host) answer(ctx context.Context, e *entry, call string, body []byte) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = types.NewError(types.ErrInternal, fmt.Sprintf("the host panicked: %v", v), "")
		}
	}()
	if call != callRequest {
		return errUnknownCall(call)
	}
	var r Request
	if err := json.Unmarshal(body, &r); err != nil {
		return types.NewError(types.ErrDecodingFailure, "invalid request: "+err.Error(), "")
	}
	if err := r.check(); err != nil {
		return err
	}
	if h.Requests == nil {
		return errors.ErrUnsupported
	}
	return h.Requests(ctx, e.Info, r)
}

func errUnknownCall(call string) error {
	return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("unknown call %.40q", call), "")
}

// errLeft is why a resident is gone that has asked to leave.
var errLeft = errors.New("it has left")
