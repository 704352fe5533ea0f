package resident

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/creachadair/jrpc2"

	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/netconf"
)

// A Request asks the host to attach one more network to a running container, or to
// detach it.
type Request struct {
	Detach      bool   `json:"detach,omitempty"`
	ContainerID string `json:"containerID"`

	// IfName names the interface. To attach, it may be empty: then the host
	// chooses a name.
	IfName string `json:"ifname,omitempty"`

	// Network, Args and CapabilityArgs are those of a [delegate.Attachment]. They
	// are ignored to detach.
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
// It fails with code 11 when p is not connected, or Synchronize has not returned
// yet, and with [errors.ErrUnsupported] when the host takes no requests. The end of
// ctx does not stop the host. When Request fails with [ErrLost], or because ctx has
// ended, the host may have done the change.
func (p *Plugin) Request(ctx context.Context, r Request) error {
	p.mu.Lock()
	s := p.session
	p.mu.Unlock()
	err := s.request(ctx, r)
	var said *types.Error
	if errors.As(err, &said) {
		return err
	}
	return fault.Of("request", p.info().String(), err)
}

func (s *session) request(ctx context.Context, r Request) error {
	switch {
	case s == nil:
		return errGone
	case !s.told.Load():
		return fmt.Errorf("%w yet: Synchronize has not returned", errGone)
	case !s.requests.Load():
		return errors.ErrUnsupported
	}
	data, err := json.Marshal(r)
	if err == nil && len(data) > maxOutput {
		err = fmt.Errorf("a request of %d bytes is longer than %d", len(data), maxOutput)
	}
	if err != nil {
		return err
	}
	_, err = s.server.Callback(ctx, methodRequest, json.RawMessage(data))
	switch {
	case err == nil:
		return nil
	case said(err) != nil:
		return said(err)
	case ctx.Err() != nil:
		return ended(ctx)
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// check refuses an invalid request.
func (r Request) check() error {
	invalid := func(format string, args ...any) error {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "invalid request: "+fmt.Sprintf(format, args...), "")
	}
	if err := utils.ValidateContainerID(r.ContainerID); err != nil {
		return invalid("%s: %.80q", err.Msg, r.ContainerID)
	}
	if r.IfName != "" || r.Detach {
		if err := utils.ValidateInterfaceName(r.IfName); err != nil {
			return invalid("%s: %.40q", err.Msg, r.IfName)
		}
	}
	if !r.Detach && r.Network.IsZero() {
		return types.NewError(types.ErrInvalidNetworkConfig, "invalid request: no network to attach", "")
	}
	return nil
}

// answer handles a request of e. A panic becomes an error: it ends neither the host
// nor other calls.
func (h *Host) answer(ctx context.Context, e *entry, call *jrpc2.Request) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = types.NewError(types.ErrInternal, fmt.Sprintf("the host panicked: %v", v), "")
		}
	}()
	switch {
	case call.Method() != methodRequest:
		return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("unknown call %.40q", call.Method()), "")
	case !h.serves(e):
		return errGone
	case h.Requests == nil:
		return errors.ErrUnsupported
	}
	var r Request
	if err := call.UnmarshalParams(&r); err != nil {
		return types.NewError(types.ErrDecodingFailure, "invalid request: "+err.Error(), "")
	}
	if err := r.check(); err != nil {
		return err
	}
	return h.Requests(ctx, e.Info, r)
}
