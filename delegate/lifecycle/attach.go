package lifecycle

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/scratch"
)

// Attach attaches a running container to more networks, as t plans. It records
// them with the attachment k, so that the Del, Check and GC of k include them.
//
// If k is not recorded as added, Attach fails with [ErrNotAdded]. When it fails
// otherwise, what it has attached is undone, and k is as before. If undoing
// fails, errors.As finds a [*delegate.UndoError], and what is left stays recorded
// for Del, Detach and the next Attach to remove. Until then its interface name
// remains in use; other interfaces can be attached. A Del of k cancels Attach.
// See also [Manager.Add].
func (m *Manager) Attach(ctx context.Context, k scratch.Key, t Transaction) ([]delegate.Attached, error) {
	ctx, finish := m.begin(ctx, k)
	defer finish()
	if m.nothing(k) {
		return nil, fail(OpAttach, k, ErrNotAdded)
	}
	var added []delegate.Attached
	err := m.locked(ctx, k.ContainerID, func(ctx context.Context, l *scratch.Lock) error {
		before, err := m.added(k)
		if err != nil {
			return err
		}
		leftErr := m.drop(ctx, l, &before, nil, halfDone)
		added, err = m.attachTo(ctx, l, before, t)
		if errors.Is(err, ErrPlan) {
			err = also(err, leftErr) // its interface name may be why
		}
		return err
	})
	return added, fail(OpAttach, k, because(ctx, err))
}

// attachTo carries out t, and adds what it attaches to the record before.
func (m *Manager) attachTo(ctx context.Context, l *scratch.Lock, before scratch.Record[record], t Transaction) ([]delegate.Attached, error) {
	a := &addition{
		m: m, t: t, lock: l, r: before, whileRunning: scratch.Partial,
		forget: func() error { return m.store().Note(l, before) },
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
		return fail(OpDetach, k, impossible("only DEL removes the attachment's own interface"))
	}
	return fail(OpDetach, k, m.withRecord(ctx, k, func(ctx context.Context, l *scratch.Lock, r scratch.Record[record]) error {
		return m.drop(ctx, l, &r, nil, func(e entry) bool { return e.IfName == ifname })
	}))
}

// withRecord calls do with the record of k while it holds the container's lock.
// Without a record it returns nil.
func (m *Manager) withRecord(ctx context.Context, k scratch.Key, do func(context.Context, *scratch.Lock, scratch.Record[record]) error) error {
	if m.nothing(k) {
		return nil
	}
	return m.locked(ctx, k.ContainerID, func(ctx context.Context, l *scratch.Lock) error {
		r, err := m.store().Get(k)
		if err != nil {
			return except(err, notThere)
		}
		return do(ctx, l, r)
	})
}

// added returns the record of k, if k has been added.
func (m *Manager) added(k scratch.Key) (scratch.Record[record], error) {
	r, err := m.store().Get(k)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !r.State.Attached() {
		return r, ErrNotAdded
	}
	return r, err
}

// drop detaches the delegates of r for which which is true, and takes them out
// of the record. It records first that it does: what a plugin has begun to remove
// is not attached any more.
func (m *Manager) drop(ctx context.Context, l *scratch.Lock, r *scratch.Record[record], how *removing, which func(entry) bool) error {
	if !slices.ContainsFunc(r.Value.Delegates, which) {
		return nil
	}
	noteTold(r)
	whole := func(e entry) bool { return !e.Half && which(e) }
	if r.State.Attached() && slices.ContainsFunc(r.Value.Delegates, whole) {
		r.State = scratch.Partial
		for i, e := range r.Value.Delegates {
			r.Value.Delegates[i].Half = e.Half || which(e)
		}
		_ = m.store().Note(l, *r) // it must work when the disk is full
	}
	if err := m.detach(ctx, l, r, how, which); err != nil {
		return err
	}
	if err := m.removeFiles(filesOf(r.Value.Delegates, which)); err != nil {
		return err
	}
	r.Value.Delegates = slices.DeleteFunc(r.Value.Delegates, which)
	if r.State == scratch.Partial {
		r.State = r.Value.whole()
	}
	return m.store().Note(l, *r) // lost with the power, it costs one more DEL
}
