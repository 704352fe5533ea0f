package lifecycle

import (
	"cmp"
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/scratch"
)

// owners knows which attachments have which addresses. It reads a record again when
// it has changed, so that a pass that removes many attachments does not read all
// records for each of them. It must be closed.
type owners struct {
	store scratch.Store[record]
	pass  bool // many attachments are removed

	mu    sync.Mutex
	watch *scratch.Watch // nil before it is needed, and where there can be none
	whole bool           // what follows is of all records
	of    map[scratch.Key][]address
	count map[address]int // how many of each there are in of
}

// An address in a network.
type address struct {
	network string
	netip.Addr
}

// ownersOf returns the owners of addresses in the records of m. pass says that many
// attachments are to be removed.
func (m *Manager) ownersOf(pass bool) *owners { return &owners{store: m.store(), pass: pass} }

func (o *owners) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.watch != nil {
		o.watch.Close()
	}
}

// disown removes from the results of as, attachments of k, the addresses that
// other attachments to the same network have by now.
//
// This happens only for attachments whose Gone is not nil: their plugins may have
// been told to release before, by us or by another program. The IPAM plugin may have
// freed the address then, and another plugin, such as firewall, has failed or was not
// run. The next DEL of that plugin must not remove what belongs to the new owner of
// the address. The owner may have been attached just now.
func (o *owners) disown(ctx context.Context, k scratch.Key, as []delegate.Attached) {
	if !slices.ContainsFunc(as, func(a delegate.Attached) bool { return a.Gone != nil && a.Result != nil }) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refresh(ctx)
	own := make(map[address]int)
	for _, a := range o.of[k] {
		own[a]++
	}
	for i, a := range as {
		if a.Gone != nil {
			as[i].Result = without(a.Result, func(ip netip.Addr) bool {
				a := address{a.Network.Name(), ip}
				return o.count[a] > own[a]
			})
		}
	}
}

// refresh reads the records that have changed.
func (o *owners) refresh(ctx context.Context) {
	if o.pass && o.watch == nil {
		o.watch, _ = o.store.Watch() // without one all records are read again
	}
	if o.watch != nil {
		if changed, known := o.watch.Changed(); known && o.whole {
			for _, k := range changed {
				o.forget(k)
				if r, err := o.store.Get(k); err == nil {
					o.note(r)
				}
			}
			return
		}
	}
	o.of, o.count = make(map[scratch.Key][]address), make(map[address]int)
	for r, err := range o.store.List(ctx) {
		if err == nil { // the addresses of a damaged record are not known
			o.note(r)
		}
	}
	o.whole = ctx.Err() == nil
}

// note adds the addresses of r, unless they are being released.
func (o *owners) note(r scratch.Record[record]) {
	if r.State == scratch.Deleting || r.State == scratch.Leftover {
		return
	}
	for _, e := range r.Value.Delegates {
		without(e.Result, func(ip netip.Addr) bool {
			a := address{e.Network.Name(), ip}
			o.of[r.Key] = append(o.of[r.Key], a)
			o.count[a]++
			return false
		})
	}
}

// forget takes the addresses of k out.
func (o *owners) forget(k scratch.Key) {
	for _, a := range o.of[k] {
		if o.count[a]--; o.count[a] == 0 {
			delete(o.count, a)
		}
	}
	delete(o.of, k)
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
