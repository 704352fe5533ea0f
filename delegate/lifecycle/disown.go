package lifecycle

import (
	"context"
	"encoding/json"
	"net/netip"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/scratch"
)

// disown takes from the results of as, attachments of k, the addresses that
// other attachments to the same network have by now. Only what a DEL has left
// half removed can have such ones: the plugin that gave the address out has
// freed it, and another, such as a firewall, has failed. That one's next DEL
// must not remove what the address's new owner has.
func (m *Manager) disown(ctx context.Context, k scratch.Key, as []delegate.Attached) {
	networks := make(map[string]bool)
	for _, a := range as {
		if a.Gone != nil && a.Result != nil {
			networks[a.Network.Name()] = true
		}
	}
	if len(networks) == 0 {
		return
	}
	owned := make(map[string]map[netip.Addr]bool)
	for r, err := range m.store().List(ctx) {
		if err != nil || r.Key == k || r.State == scratch.Deleting {
			continue // what cannot be read cannot be spared
		}
		for _, e := range r.Value.Delegates {
			name := e.Network.Name()
			if !networks[name] {
				continue
			}
			if owned[name] == nil {
				owned[name] = make(map[netip.Addr]bool)
			}
			for _, a := range addresses(e.Result) {
				owned[name][a] = true
			}
		}
	}
	for i, a := range as {
		if a.Gone != nil {
			as[i].Result = without(a.Result, owned[a.Network.Name()])
		}
	}
}

// addresses returns those that a result of version 0.3.0 and later gives out;
// the plugins of earlier ones are not given results in DEL.
func addresses(result json.RawMessage) []netip.Addr {
	var all struct {
		IPs []address `json:"ips"`
	}
	_ = json.Unmarshal(result, &all) // what cannot be decoded has none
	var out []netip.Addr
	for _, a := range all.IPs {
		if p, err := netip.ParsePrefix(a.Address); err == nil {
			out = append(out, p.Addr())
		}
	}
	return out
}

type address struct {
	Address string `json:"address"`
}

// without returns result without the addresses that are owned.
func without(result json.RawMessage, owned map[netip.Addr]bool) json.RawMessage {
	var keys map[string]json.RawMessage
	var ips []json.RawMessage
	if len(owned) == 0 || json.Unmarshal(result, &keys) != nil || json.Unmarshal(keys["ips"], &ips) != nil {
		return result
	}
	kept := []json.RawMessage{}
	for _, ip := range ips {
		var a address
		_ = json.Unmarshal(ip, &a)
		if p, err := netip.ParsePrefix(a.Address); err != nil || !owned[p.Addr()] {
			kept = append(kept, ip)
		}
	}
	if len(kept) == len(ips) {
		return result
	}
	keys["ips"], _ = json.Marshal(kept) // it was valid JSON
	out, err := json.Marshal(keys)
	if err != nil {
		return result
	}
	return out
}
