package lifecycle

import (
	"cmp"
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// An owned address is one that an attachment has in a network.
type owned struct {
	network string
	address netip.Addr
	static  bool // the configuration of the network names it
}

// beside has the answers of other records to questions about an attachment.
type beside struct {
	owned     []owned // addresses of it that others have
	container bool    // its container has another record
}

// disown removes from the results of as the addresses that other attachments to the same network
// have. An address may have been freed, by us or by another program, and given to another container,
// when a plugin such as firewall failed or the disk was full. The next DEL must not remove what
// belongs to the new owner of the address. Static addresses that both configurations name are shared
// on purpose.
func (b beside) disown(as []delegate.Attached) {
	for i, a := range as {
		static := isStatic(a.Network)
		as[i].Result = without(a.Result, func(ip netip.Addr) bool {
			return slices.ContainsFunc(b.owned, func(o owned) bool {
				return o.network == a.Network.Name() && o.address == ip && (!o.static || !static)
			})
		})
	}
}

// ownedBy returns the addresses in the result of an attachment to n.
func ownedBy(n netconf.Network, result json.RawMessage) (all []owned) {
	static := isStatic(n)
	without(result, func(ip netip.Addr) bool {
		all = append(all, owned{n.Name(), ip, static})
		return false
	})
	return all
}

// isStatic reports whether the addresses in n are those in its configuration.
func isStatic(n netconf.Network) bool {
	return slices.ContainsFunc(n.Plugins(), func(p netconf.Plugin) bool {
		var ipam struct{ Type string }
		text, _ := p.Get("ipam")
		return json.Unmarshal(text, &ipam) == nil && ipam.Type == "static"
	})
}

// lookBeside returns what the records other than k's say, of an attachment with the addresses ours.
// Addresses that are being released are nobody's, and those of a damaged record are not known. It
// fails if the records cannot be listed.
func (m *Manager) lookBeside(ctx context.Context, k scratch.Key, ours []owned) (others beside, err error) {
	index, own := readIndex(m.Dir), ownKey(k)
	now := make([]indexed, 0, len(index))
	fresh := 0
	var at scratch.Key
	var version string
	for r, err := range m.store().ListChanged(ctx, func(file scratch.Key, is string) bool {
		at, version = file, is
		if at == own {
			return true
		}
		others.container = others.container || at.ContainerID == own.ContainerID
		if known := index[at]; known.version == version {
			now = append(now, known)
			return true
		}
		fresh++
		return false
	}) {
		if err != nil && r.Key == (scratch.Key{}) {
			return beside{}, err
		}
		if err != nil {
			continue
		}
		one := indexed{at, version, "\t"}
		if r.State != scratch.Deleting && r.State != scratch.Leftover {
			for _, e := range r.Value.Delegates {
				for _, o := range ownedBy(e.Network, e.Result) {
					one.owned += o.text() + "\t"
				}
			}
		}
		now = append(now, one)
	}
	if len(now) >= indexFrom && fresh > indexFresh {
		writeIndex(m.Dir, now)
	}
	for _, o := range ours {
		for _, o.static = range []bool{false, true} { // as the other one has it
			if text := o.text(); slices.ContainsFunc(now, func(one indexed) bool { return one.has(text) }) {
				others.owned = append(others.owned, o)
			}
		}
	}
	return others, nil
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
