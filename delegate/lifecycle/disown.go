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

// disown removes from the results of as, attachments of k, the addresses that
// other attachments to the same network have by now.
//
// This happens only if a DEL has been tried before, by us or by another program.
// The IPAM plugin has freed the address then, and another plugin, such as
// firewall, has failed. The next DEL of that plugin must not remove what belongs
// to the new owner of the address.
//
// disown reads the records each time: an index would miss an owner who was
// attached since it was made.
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
	headers := scratch.Store[struct{}]{Dir: m.Dir} // to skip thousands of Deleting ones fast
	for h, err := range headers.List(ctx) {
		if err != nil || h.Key == k || h.State == scratch.Deleting {
			continue
		}
		r, err := m.store().Get(h.Key)
		if err != nil || r.State == scratch.Deleting {
			continue // the addresses of a damaged record are not known
		}
		for _, e := range r.Value.Delegates {
			name := e.Network.Name()
			if !networks[name] {
				continue
			}
			if owned[name] == nil {
				owned[name] = make(map[netip.Addr]bool)
			}
			without(e.Result, func(a netip.Addr) bool {
				owned[name][a] = true
				return false
			})
		}
	}
	for i, a := range as {
		if a.Gone != nil {
			as[i].Result = without(a.Result, func(ip netip.Addr) bool { return owned[a.Network.Name()][ip] })
		}
	}
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
