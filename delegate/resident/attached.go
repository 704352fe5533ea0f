package resident

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/netconf"
)

// A Known attachment is one in which a plugin of the resident takes part. It
// holds what that plugin received in ADD.
type Known struct {
	Type        string // of the plugin
	ContainerID string
	NetNS       string
	IfName      string
	Args        string          // CNI_ARGS
	Config      json.RawMessage // as in CHECK: with prevResult

	// Added says that the ADD of all plugins of the network has succeeded.
	// Otherwise an ADD or a DEL of the attachment runs, or was interrupted and may
	// be repeated.
	Added bool
}

// attachments lists what is attached. The list is nil when the host does not
// know.
func (h *Host) attachments(ctx context.Context) ([]delegate.Attached, error) {
	if h.Attachments == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, h.registerTimeout())
	defer cancel()
	as, err := h.Attachments(ctx)
	if err == nil && as == nil {
		as = []delegate.Attached{}
	}
	return as, err
}

// known lists the attachments of i's types.
func (h *Host) known(ctx context.Context, i Info) ([]Known, error) {
	as, err := h.attachments(ctx)
	if err != nil {
		return nil, err
	}
	known := []Known{}
	for _, a := range as {
		for n, p := range a.Network.Plugins() {
			if !slices.Contains(i.Types, p.Type()) || slices.Contains(a.Gone, n) {
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
