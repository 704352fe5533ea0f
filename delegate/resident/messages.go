package resident

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/creachadair/jrpc2"

	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

// protocol is the version of the messages.
const protocol = 3

// The methods of the messages.
const (
	methodRegister    = "register"    // host to resident: greeting; answered with hello
	methodRefused     = "refused"     // host to resident: refusal
	methodSynchronize = "synchronize" // host to resident: synchronization
	methodCommand     = "cni"         // host to resident: command; answered with stdout
	methodCancel      = "cancel"      // host to resident, no answer: IDs of calls
	methodRequest     = "request"     // resident to host: Request
	methodLeave       = "leave"       // resident to host, no answer
)

// A greeting asks a process to register.
type greeting struct {
	Version int `json:"version"`
}

// A hello is the registration of a resident.
type hello struct {
	Version int `json:"version"`
	Info
}

// A refusal is why a process may not register.
type refusal struct {
	Reason string `json:"reason"`
}

// A synchronization lists the current attachments of the resident's types.
type synchronization struct {
	Known []Known `json:"known"`
}

// A command is a call of a plugin.
type command struct {
	Type   string            `json:"type"`
	Env    map[string]string `json:"env"`
	Config []byte            `json:"config,omitempty"` // stdin
}

// maxOutput is the size of the stdout of a command, or of its error, in bytes. Encoded
// as base64 it fits in a message.
const maxOutput = maxFromPlugin / 2

// failure returns err as it is sent: an error object of CNI in one of JSON-RPC.
func failure(err error) error {
	if err == nil {
		return nil
	}
	var e *types.Error
	errors.As(status.Error(err), &e)
	if n := len(e.Msg) + len(e.Details); n > maxOutput/2 {
		e = types.NewError(e.Code, fmt.Sprintf("an error of %d bytes is longer than %d", n, maxOutput/2), "")
	}
	return jrpc2.Errorf(jrpc2.InternalError, "%s", e.Msg).WithData(e)
}

// said returns the error object of CNI that the other side has sent, or nil.
func said(err error) *types.Error {
	var answer *jrpc2.Error
	var e types.Error
	if errors.As(err, &answer) && json.Unmarshal(answer.Data, &e) == nil && e.Code != types.ErrUnknown {
		return &e
	}
	return nil
}

// outcome returns what has come of a call that returned err: the error object that the other
// side has sent, or the end of ctx. It is not certain what other errors mean.
func outcome(ctx context.Context, err error) (certain bool, _ error) {
	switch {
	case err == nil:
		return true, nil
	case said(err) != nil:
		return true, said(err)
	case ctx.Err() != nil:
		return true, ended(ctx)
	}
	return false, err
}

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

// A Known attachment is one in which a plugin of the resident takes part. It
// holds what that plugin received in ADD.
type Known struct {
	Type        string // of the plugin
	ContainerID string
	NetNS       string
	IfName      string
	Args        string          // CNI_ARGS
	Config      json.RawMessage `json:",omitempty"` // as in CHECK: with prevResult

	// Unreadable says that the record of IfName cannot be read. The container may be
	// attached by a plugin of the type, to any interface: do not remove anything of it.
	Unreadable bool `json:",omitempty"`

	// Added says that the ADD of all plugins of the network has succeeded.
	// Otherwise an ADD or a DEL of the attachment runs, or was interrupted and may
	// be repeated.
	Added bool
}

// known lists the attachments of types.
func (h *Host) known(ctx context.Context, types []string) ([]Known, error) {
	known := []Known{}
	if h.Attachments == nil {
		return known, nil
	}
	ctx, cancel := context.WithTimeout(ctx, h.registerTimeout())
	defer cancel()
	as, err := h.Attachments(ctx)
	if err != nil {
		return nil, err
	}
	for _, a := range as {
		if a.Network.IsZero() {
			for _, typ := range types {
				known = append(known, Known{Type: typ, ContainerID: a.ContainerID, IfName: a.IfName, Unreadable: true})
			}
			continue
		}
		for n, p := range a.Network.Plugins() {
			if !slices.Contains(types, p.Type()) || slices.Contains(a.Gone, n) {
				continue
			}
			conf, err := a.Network.Request(n, netconf.Request{PrevResult: a.Result, CapabilityArgs: a.CapabilityArgs})
			if err != nil { // an unusable result must not keep the resident from registering
				conf, err = a.Network.Request(n, netconf.Request{CapabilityArgs: a.CapabilityArgs})
			}
			if err != nil {
				return nil, err
			}
			known = append(known, Known{
				Type: p.Type(), ContainerID: a.ContainerID, NetNS: a.NetNS, IfName: a.IfName, Args: a.Args, Config: conf, Added: a.Added,
			})
		}
	}
	return known, nil
}
