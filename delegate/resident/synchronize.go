package resident

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/netconf"
)

// A Known attachment is one that a resident has made in part: it is what its
// plugin was given in ADD.
type Known struct {
	Type        string // of the plugin
	ContainerID string
	NetNS       string
	IfName      string
	Args        string          // CNI_ARGS
	Config      json.RawMessage // with prevResult, as CHECK would get it

	// Added says that its ADD, and that of every other plugin of the network,
	// has succeeded. Else it has been begun and not finished, or is being
	// removed: an ADD or a DEL may follow, or nothing.
	Added bool
}

// A synchronization is the message of what is known.
type synchronization struct {
	Known []Known `json:"known"`
}

// known lists what is attached by plugins of i's types.
func (r *Host) known(ctx context.Context, i Info) ([]Known, error) {
	known := []Known{}
	if r.Attachments == nil {
		return known, nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.registerTimeout())
	defer cancel()
	as, err := r.Attachments(ctx)
	if err != nil {
		return nil, err
	}
	for _, a := range as {
		for n, p := range a.Network.Plugins() {
			if !slices.Contains(i.Types, p.Type()) || slices.Contains(a.Gone, n) {
				continue
			}
			k, err := know(a, n)
			if err != nil {
				return nil, err
			}
			known = append(known, k)
		}
	}
	return known, nil
}

// know is what the n-th plugin of a knows of a.
func know(a delegate.Attached, n int) (Known, error) {
	conf, err := a.Network.Request(n, netconf.Request{PrevResult: a.Result, CapabilityArgs: a.CapabilityArgs})
	if err != nil { // a result that cannot be handed on must not keep the resident away
		conf, err = a.Network.Request(n, netconf.Request{CapabilityArgs: a.CapabilityArgs})
	}
	return Known{
		Type: a.Network.Plugins()[n].Type(), ContainerID: a.ContainerID, NetNS: a.NetNS, IfName: a.IfName, Args: a.Args,
		Config: conf, Added: a.Added,
	}, err
}

// synchronize tells the resident what is known.
func (l *link) synchronize(ctx context.Context, known []Known) error {
	body, err := json.Marshal(synchronization{known})
	if err != nil {
		return errors.New("what is attached cannot be told") // the words may quote a configuration
	}
	_, err = l.exchange(ctx, pathSynchronize, "", body, maxHello)
	return err
}
