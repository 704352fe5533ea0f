package resident

import (
	"context"
	"encoding/json"
	"slices"

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
