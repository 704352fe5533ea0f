package lifecycle

import (
	"context"
	"slices"

	"github.com/metacni/metacni/scratch"
)

// ownMAC returns the MAC address of the interface of e in the container, by its result, or "".
func ownMAC(e entry) string {
	for _, i := range interfacesIn(e.Result) {
		if i.Name == e.IfName && i.Sandbox != "" {
			return i.Mac
		}
	}
	return ""
}

// swapped returns which attachments that go have given the name of their interface to the
// interface of an attachment that stays: a container may swap names. A DEL by the name would remove
// the other one.
func (w *walk) swapped(ctx context.Context, others beside) map[int]bool {
	stay := make(map[string]bool) // MAC addresses
	for i, e := range w.r.Value.Delegates {
		if w.verdicts[i] == stays {
			stay[ownMAC(e)] = true
		}
	}
	var rs []scratch.Record[record]
	if others.container {
		rs, _ = w.m.store().Container(ctx, w.r.Key.ContainerID) // of what cannot be read nothing is known
	}
	for _, r := range rs {
		if r.Key != w.r.Key && r.State.Attached() {
			for _, e := range r.Value.Delegates {
				stay[ownMAC(e)] = true
			}
		}
	}
	delete(stay, "")
	found := make(map[int]bool)
	for i, e := range w.r.Value.Delegates {
		mac, path := ownMAC(e), ""
		if len(stay) > 0 && w.verdicts[i] == goes && mac != "" && !stay[mac] {
			path = w.o.forPlugin(e.NetNS)
		}
		if path == "" {
			continue
		}
		links, _ := w.m.onMachine().links(w.m.Root, path) // without the rights nothing is known
		if slices.ContainsFunc(links, func(l hostLink) bool { return l.name == e.IfName && stay[l.mac] }) {
			found[i] = true
		}
	}
	return found
}

// removeSwapped removes the interfaces of swapped attachments, by their MAC addresses.
func (w *walk) removeSwapped(swapped map[int]bool) {
	for i := range swapped {
		e := w.r.Value.Delegates[i]
		if path := w.o.forPlugin(e.NetNS); path != "" && !e.left() {
			w.m.onMachine().removeInside(w.m.Root, path, ownMAC(e))
		}
	}
}
