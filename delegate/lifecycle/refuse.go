package lifecycle

import (
	"context"
	"slices"

	"github.com/metacni/metacni/scratch"
)

// Refuse notes that an ADD of k was refused, in the namespace at the path netns, although another
// attachment of the container has its interface. The runtime sends a DEL of k next, which must
// not take the other attachment for k. [Manager.Add] notes this itself; Refuse is for an ADD that
// fails before.
//
// If the container has no other attachment with the interface, and the interface is not in the
// namespace, or if k is recorded, Refuse notes nothing.
func (m *Manager) Refuse(ctx context.Context, k scratch.Key, netns string) error {
	if m.Dir == "" || !m.contested(ctx, k, netns) {
		return nil
	}
	return fail(opAdd, k, m.locked(ctx, opAdd, k, func(ctx context.Context, l *scratch.Lock) error {
		return m.refuse(ctx, l, k, netns)
	}))
}

// refuse is Refuse with the container's lock held.
func (m *Manager) refuse(ctx context.Context, l *scratch.Lock, k scratch.Key, path string) error {
	if !m.unrecorded(k) || !m.contested(ctx, k, path) {
		return nil
	}
	o := m.observe()
	n := o.look(path).inBoot(o.boot())
	if o.hosts(n) { // which never ends
		n.Inode = 0
	}
	return m.put(ctx, l, scratch.Record[record]{Key: k, State: scratch.Leftover, Value: record{Type: m.Type, Delegates: []entry{}, Refused: &n}})
}

// contested reports whether something else than k has the interface of k.
func (m *Manager) contested(ctx context.Context, k scratch.Key, netns string) bool {
	if slices.Contains(m.usedBeside(ctx, k), k.IfName) {
		return true
	}
	names, err := m.interfaceNames(netns)
	return err == nil && slices.Contains(names, k.IfName)
}

// settleRefused removes what [Manager.Refuse] has noted of k. It stays while the container may
// live, since DELs are repeated.
func (m *Manager) settleRefused(ctx context.Context, l *scratch.Lock, k scratch.Key) error {
	r, err := m.store().Get(k)
	if err != nil || r.Value.Refused == nil {
		return nil //nolint:nilerr // the removal reports it
	}
	if j := m.observe().judge(m.record(r).entries); j.Life == Dead || r.Value.Refused.Inode == 0 {
		return m.forget(ctx, l, k)
	}
	return nil
}
