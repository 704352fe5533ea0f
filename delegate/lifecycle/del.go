package lifecycle

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/scratch"
)

// Del removes the attachment k as it was recorded, whatever its configuration
// has become. An Add of k that is running in this Manager is cancelled, and
// waited for.
//
// Every plugin is tried, whatever fails. When one fails the record stays, for
// the next try, and the errors are joined. An attachment without a record was
// never made: Del returns nil. A damaged record fails with
// [scratch.ErrCorrupt].
//
// The plugins receive netns, or the recorded namespace when netns is empty;
// but only as long as it is the namespace that was there at ADD, and else an
// empty one: the same path may have become another container's.
func (m *Manager) Del(ctx context.Context, k scratch.Key, netns string) error {
	m.supersede(k)
	if _, err := os.Lstat(m.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil // not even a lock has been taken here, ever
	}
	return fail("DEL", k, m.locked(ctx, k.ContainerID, func(ctx context.Context, l *scratch.Lock) error {
		return m.remove(ctx, l, k, netns)
	}))
}

// remove runs the DELs of what is recorded under k and forgets it.
func (m *Manager) remove(ctx context.Context, l *scratch.Lock, k scratch.Key, netns string) error {
	return m.removeIf(ctx, l, k, netns, func(scratch.Record[record]) error { return nil })
}

func (m *Manager) removeIf(ctx context.Context, l *scratch.Lock, k scratch.Key, given string, check func(scratch.Record[record]) error) error {
	return m.store().Consume(ctx, l, k, func(ctx context.Context, r scratch.Record[record]) error {
		if err := check(r); err != nil {
			return err
		}
		if r.State != scratch.Deleting {
			r.State = scratch.Deleting
			_ = m.store().Note(r) // a full disk must not keep a container from going
		}
		as := r.Value.attachedIn(k.ContainerID, func(n netns) string { return n.forDel(given) })
		return m.invoker().DelAll(ctx, as)
	})
}

// added returns the record of k, if k has been added.
func (m *Manager) added(k scratch.Key) (scratch.Record[record], error) {
	r, err := m.store().Get(k)
	if errors.Is(err, fs.ErrNotExist) || err == nil && r.State != scratch.Added {
		return r, ErrNotAdded
	}
	return r, err
}

// Attach adds what t plans to the attachment k of a running container, and
// records it there: the Del, Check and GC of k then include it. It fails with
// [ErrNotAdded] when k is not recorded as added. When it fails, what it had
// attached is undone, and k is as before; see [Manager.Add].
func (m *Manager) Attach(ctx context.Context, k scratch.Key, t Transaction) ([]delegate.Attached, error) {
	ctx, finish := m.begin(ctx, k)
	defer finish()
	var added []delegate.Attached
	err := m.locked(ctx, k.ContainerID, func(ctx context.Context, _ *scratch.Lock) error {
		before, err := m.settled(ctx, k)
		if err != nil {
			return err
		}
		plan, err := m.fresh(k, t)
		if err != nil {
			return err
		}
		r := before
		r.Value.Delegates = append(r.Value.Delegates[:len(r.Value.Delegates):len(r.Value.Delegates)], newRecord(delegate.Intend(plan)).Delegates...)
		if err := m.store().Update(r); err != nil {
			return errors.Join(err, m.store().Note(before))
		}
		added, err = m.run(ctx, t, plan, r)
		var left *delegate.UndoError
		switch {
		case errors.As(err, &left):
			err = errors.Join(err, m.store().Note(r)) // with what is left, for Del
		case err != nil:
			err = errors.Join(err, m.store().Note(before))
		}
		return err
	})
	if err != nil {
		return nil, fail("ATTACH", k, err)
	}
	return added, nil
}

// Detach removes the interface ifname from the attachment k of a running
// container, and from its record. What is not recorded, or not any more, is
// not there: Detach returns nil. The interface of k itself goes with Del alone:
// for it Detach fails with [ErrPlan].
func (m *Manager) Detach(ctx context.Context, k scratch.Key, ifname string) error {
	return fail("DETACH", k, m.locked(ctx, k.ContainerID, func(ctx context.Context, _ *scratch.Lock) error {
		if ifname == k.IfName {
			return ErrPlan
		}
		r, err := m.added(k)
		if err != nil {
			return err
		}
		return m.drop(ctx, &r, func(a delegate.Attached) bool { return a.IfName == ifname })
	}))
}

// settled returns the record of k, which has been added, after it has removed
// what an interrupted Attach left of itself.
func (m *Manager) settled(ctx context.Context, k scratch.Key) (scratch.Record[record], error) {
	r, err := m.added(k)
	if err != nil {
		return r, err
	}
	err = m.drop(ctx, &r, func(a delegate.Attached) bool { return a.Result == nil })
	return r, err
}

// drop removes the attachments of r that are which, and then r of them.
func (m *Manager) drop(ctx context.Context, r *scratch.Record[record], which func(delegate.Attached) bool) error {
	var gone []delegate.Attached
	var kept []entry
	for i, a := range r.Value.attachedIn(r.Key.ContainerID, func(n netns) string { return n.forDel("") }) {
		if which(a) {
			gone = append(gone, a)
		} else {
			kept = append(kept, r.Value.Delegates[i])
		}
	}
	if len(gone) == 0 {
		return nil
	}
	if err := m.invoker().DelAll(ctx, gone); err != nil {
		return err
	}
	r.Value.Delegates = kept
	return m.store().Update(*r)
}
