package lifecycle

import (
	"cmp"
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/scratch"
)

// An address in a network.
type address struct {
	network string
	netip.Addr
}

// disown removes from the results of as, attachments of k, the addresses that
// other attachments to the same network have by now.
//
// This happens only for attachments whose Gone is not nil: their plugins may have
// been told to release before, by us or by another program. The IPAM plugin may have
// freed the address then, and another plugin, such as firewall, has failed or was not
// run. The next DEL of that plugin must not remove what belongs to the new owner of
// the address. The owner may have been attached just now.
func (m *Manager) disown(ctx context.Context, k scratch.Key, as []delegate.Attached) {
	if !slices.ContainsFunc(as, func(a delegate.Attached) bool { return a.Gone != nil && a.Result != nil }) {
		return
	}
	owned := m.addresses(ctx, k)
	for i, a := range as {
		if a.Gone != nil {
			as[i].Result = without(a.Result, func(ip netip.Addr) bool { return owned[address{a.Network.Name(), ip}] })
		}
	}
}

// addresses returns the addresses of all attachments except k, unless they are being
// released. Those of a damaged record are not known.
func (m *Manager) addresses(ctx context.Context, k scratch.Key) map[address]bool {
	all := make(map[address]bool)
	for r, err := range m.store().List(ctx) {
		if err != nil || r.Key == k || r.State == scratch.Deleting || r.State == scratch.Leftover {
			continue
		}
		for _, e := range r.Value.Delegates {
			without(e.Result, func(ip netip.Addr) bool {
				all[address{e.Network.Name(), ip}] = true
				return false
			})
		}
	}
	return all
}

// without returns result without the addresses for which owned is true. It calls
// owned with each address.
func without(result json.RawMessage, owned func(netip.Addr) bool) json.RawMessage {
	var keys map[string]json.RawMessage
	_ = json.Unmarshal(result, &keys) // if it fails there are none
	changed := false
	for key, value := range keys {
		switch strings.ToLower(key) { // as package json reads it
		case "ips":
			var ips []json.RawMessage
			_ = json.Unmarshal(value, &ips)
			kept := slices.DeleteFunc(slices.Clone(ips), func(ip json.RawMessage) bool { return holds(ip, owned) })
			if len(kept) < len(ips) {
				keys[key], _ = json.Marshal(kept) // it was valid JSON
				changed = true
			}
		case "ip4", "ip6": // of a result before 0.3.0
			if holds(value, owned) {
				delete(keys, key)
				changed = true
			}
		}
	}
	if !changed {
		return result
	}
	out, _ := json.Marshal(keys) // as above
	return out
}

// holds reports whether ip, an address in a result, is owned.
func holds(ip json.RawMessage, owned func(netip.Addr) bool) bool {
	var a struct{ Address, IP string }
	_ = json.Unmarshal(ip, &a)
	p, err := netip.ParsePrefix(cmp.Or(a.Address, a.IP))
	return err == nil && owned(p.Addr())
}
