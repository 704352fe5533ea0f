package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/scratch"
)

// Attach adds what t plans to the attachment k of a running container, and
// records it there: the Del, Check and GC of k then include it. It fails with
// [ErrNotAdded] when k is not recorded as added. When it fails otherwise, what
// it had attached is undone, and k is as before; where undoing fails the error
// has a [*delegate.UndoError] in it, and what is left stays recorded, for Del,
// Detach and the next Attach to remove. A Del of k cancels it. See
// [Manager.Add].
func (m *Manager) Attach(ctx context.Context, k scratch.Key, t Transaction) ([]delegate.Attached, error) {
	ctx, finish := m.begin(ctx, k)
	defer finish()
	if m.nothing(k) {
		return nil, fail("ATTACH", k, ErrNotAdded)
	}
	var added []delegate.Attached
	err := m.locked(ctx, k.ContainerID, func(ctx context.Context, l *scratch.Lock) error {
		before, err := m.settled(ctx, l, k)
		if err != nil {
			return err
		}
		plan, err := m.fresh(ctx, l, k, t)
		if err != nil {
			return err
		}
		r := before
		r.Value.Delegates = slices.Concat(r.Value.Delegates, newRecord(m.Root, delegate.Intend(plan)).Delegates)
		if err := m.store().Put(l, r); err != nil {
			return also(err, m.store().Note(l, before)) // nothing has run
		}
		added, err = m.run(ctx, l, t, plan, r)
		switch {
		case err == nil:
			return nil
		case undone(err):
			return also(err, m.store().Note(l, before))
		}
		r.Value = r.Value.with(added).leaving(len(plan))
		return also(err, m.store().Note(l, r))
	})
	if err != nil {
		return nil, fail("ATTACH", k, because(ctx, err))
	}
	return added, nil
}

// Detach removes the interface ifname from the attachment k of a running
// container, and from its record. What is not recorded, or not any more, is
// not there: Detach returns nil. When a plugin fails the record stays as it
// was, for the next try. The interface of k itself goes with Del alone: for it
// Detach fails with [ErrPlan].
func (m *Manager) Detach(ctx context.Context, k scratch.Key, ifname string) error {
	if ifname == k.IfName {
		return fail("DETACH", k, fmt.Errorf("%w: %q is the attachment's own interface", ErrPlan, ifname))
	}
	if m.nothing(k) {
		return nil
	}
	return fail("DETACH", k, m.locked(ctx, k.ContainerID, func(ctx context.Context, l *scratch.Lock) error {
		r, err := m.store().Get(k)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return m.drop(ctx, l, &r, func(e entry) bool { return e.IfName == ifname })
	}))
}

// added returns the record of k, if k has been added.
func (m *Manager) added(k scratch.Key) (scratch.Record[record], error) {
	r, err := m.store().Get(k)
	if errors.Is(err, fs.ErrNotExist) || err == nil && r.State != scratch.Added {
		return r, ErrNotAdded
	}
	return r, err
}

// settled returns the record of k, which has been added, after it has removed
// what an interrupted Attach left of itself.
func (m *Manager) settled(ctx context.Context, l *scratch.Lock, k scratch.Key) (scratch.Record[record], error) {
	r, err := m.added(k)
	if err != nil {
		return r, err
	}
	err = m.drop(ctx, l, &r, func(e entry) bool { return !e.whole() })
	return r, err
}

// drop removes the attachments of r that are which, and then r of them.
func (m *Manager) drop(ctx context.Context, l *scratch.Lock, r *scratch.Record[record], which func(entry) bool) error {
	gone, kept := record{}, record{Delegates: []entry{}}
	for _, e := range r.Value.Delegates {
		if which(e) {
			gone.Delegates = append(gone.Delegates, e)
		} else {
			kept.Delegates = append(kept.Delegates, e)
		}
	}
	if len(gone.Delegates) == 0 {
		return nil
	}
	as := gone.attached(r.Key.ContainerID, func(n netns) string { return n.forDel(m.Root, "") })
	if err := m.invoker().DelAll(ctx, as); err != nil {
		return err
	}
	r.Value = kept
	return m.store().Note(l, *r) // lost with the power, it costs one more DEL
}
