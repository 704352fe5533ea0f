package lifecycle

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/scratch"
)

// Attach attaches a running container to more networks, as t plans. It records
// them with the attachment k, so that the Del, Check and GC of k include them.
//
// If k is not recorded as added, Attach fails with [ErrNotAdded]. When it fails
// otherwise, what it has attached is undone, and k is as before. If undoing
// fails, the error is [delegate.ErrNotUndone] too, and what is left stays recorded
// for Del, Detach and the next Attach to remove. Until then its interface name
// remains in use; other interfaces can be attached. A Del of k cancels Attach.
// See also [Manager.Add].
func (m *Manager) Attach(ctx context.Context, k scratch.Key, t Transaction) ([]delegate.Attached, error) {
	ctx, finish := m.begin(ctx, k)
	defer finish()
	if m.nothing(k) {
		return nil, fail(opAttach, k, ErrNotAdded)
	}
	var added []delegate.Attached
	err := m.locked(ctx, opAttach, k, func(ctx context.Context, l *scratch.Lock) error {
		o := m.observe()
		o.given = t.NetNS
		before, err := m.added(ctx, k, o)
		if err != nil {
			return err
		}
		if t.NetNS != "" && o.elsewhere(before.Value.Delegates) {
			return fault.New(types.ErrInvalidNetNS, fmt.Sprintf("the container is not in the network namespace at %q", t.NetNS))
		}
		leftErr := m.drop(ctx, l, &before, errand{which: halfDone})
		added, err = m.attachTo(ctx, l, before, t)
		if errors.Is(err, ErrPlan) {
			err = errors.Join(err, leftErr) // its interface name may be why
		}
		return err
	})
	return added, fail(opAttach, k, because(ctx, err))
}

// attachTo carries out t, and adds what it attaches to the record before.
func (m *Manager) attachTo(ctx context.Context, l *scratch.Lock, before scratch.Record[record], t Transaction) ([]delegate.Attached, error) {
	a := &addition{
		m: m, t: t, lock: l, r: before, part: true,
		forget: func() error { return m.note(ctx, l, before) },
	}
	return a.do(ctx)
}

// Detach removes the interface ifname from the attachment k of a running
// container, and from its record. If there is no such interface in the record,
// Detach returns nil. When a plugin fails the interface stays recorded, as half
// done: nobody knows what is left of it. Check ignores it, and Del, Detach, the
// next Attach and a [Sweeper] try again. Only Del removes the interface of k
// itself: for that Detach fails with [ErrPlan].
func (m *Manager) Detach(ctx context.Context, k scratch.Key, ifname string) error {
	if ifname == k.IfName {
		return fail(opDetach, k, impossible("only DEL removes the attachment's own interface"))
	}
	return fail(opDetach, k, m.withRecord(ctx, opDetach, k, func(ctx context.Context, l *scratch.Lock, r scratch.Record[record]) error {
		return m.drop(ctx, l, &r, errand{which: func(e entry) bool { return e.IfName == ifname }})
	}))
}
