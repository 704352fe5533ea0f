package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/scratch"
)

// A Transaction is what an ADD consists of beside the plugins. All of it
// succeeds, or what was attached is detached again.
type Transaction struct {
	// Plan says what to attach, in order; see also [delegate.Invoker.Parallel].
	// It is called with the lock held, with the interface names that the
	// container's records use already. A Transaction without Plan fails with
	// [ErrPlan].
	Plan func(taken []string) ([]delegate.Attachment, error)

	// Adjust, when not nil, does what is left to do in the container when
	// all is attached. It may change the results; they are recorded as it
	// leaves them, and CHECK compares with that. It must leave results that
	// can be decoded. What is undone later is undone with the results as the
	// plugins gave them.
	Adjust func(ctx context.Context, added []delegate.Attached) error

	// Report, when not nil, tells the caller of the ADD, last of all.
	Report func(added []delegate.Attached) error
}

// Plan returns a plan of fixed attachments, for [Transaction.Plan].
func Plan(as ...delegate.Attachment) func([]string) ([]delegate.Attachment, error) {
	return func([]string) ([]delegate.Attachment, error) { return as, nil }
}

// Add attaches container k.ContainerID as t says, under the record k, and
// returns what was attached.
//
// The plan is recorded before the first plugin runs, so that whatever happens
// next can be undone by Del. When anything fails, or ctx ends, everything is
// undone before Add returns and the record is removed; where undoing fails the
// error has a [*delegate.UndoError] in it and the record stays, for Del.
//
// On an attachment that is recorded as added Add fails with [ErrAdded] and
// does nothing. What an interrupted Add or Del left is undone first. A damaged
// record fails with [scratch.ErrCorrupt], a plan that cannot be carried out
// with [ErrPlan]. Every error is an [*Error].
func (m *Manager) Add(ctx context.Context, k scratch.Key, t Transaction) ([]delegate.Attached, error) {
	ctx, finish := m.begin(ctx, k)
	defer finish()
	var added []delegate.Attached
	err := m.locked(ctx, k.ContainerID, func(ctx context.Context, l *scratch.Lock) error {
		if err := m.clear(ctx, l, k); err != nil {
			return err
		}
		plan, err := m.fresh(ctx, l, k, t)
		if err != nil {
			return err
		}
		r := scratch.Record[record]{Key: k, State: scratch.Planned, Created: time.Now(), Value: newRecord(m.Root, delegate.Intend(plan))}
		if err := m.store().Put(l, r); err != nil {
			return also(err, m.store().Delete(l, k)) // nothing has run
		}
		added, err = m.run(ctx, l, t, plan, r)
		switch {
		case err == nil:
			return nil
		case undone(err):
			return also(err, m.store().Delete(l, k))
		}
		r.State, r.Value = scratch.Deleting, r.Value.with(added)
		_ = m.store().Note(l, r) // without it the record reads as before, which serves Del as well
		return err
	})
	if err != nil {
		return nil, fail("ADD", k, because(ctx, err))
	}
	return added, nil
}

// clear undoes what an earlier call has left of k, and refuses what is whole.
func (m *Manager) clear(ctx context.Context, l *scratch.Lock, k scratch.Key) error {
	r, err := m.store().Get(k)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case r.State == scratch.Added:
		return ErrAdded
	}
	return m.remove(ctx, l, k, "")
}

// fresh plans t and refuses a plan that cannot be carried out.
func (m *Manager) fresh(ctx context.Context, l *scratch.Lock, k scratch.Key, t Transaction) ([]delegate.Attachment, error) {
	if t.Plan == nil {
		return nil, fmt.Errorf("%w: there is none", ErrPlan)
	}
	taken, err := m.taken(ctx, l)
	if err != nil {
		return nil, err
	}
	plan, err := t.Plan(slices.Clone(taken))
	if err != nil {
		return nil, err
	}
	if len(plan) == 0 {
		return nil, fmt.Errorf("%w: no networks", ErrPlan)
	}
	for _, a := range plan {
		if a.ContainerID != k.ContainerID {
			return nil, fmt.Errorf("%w: network %q is for container %q", ErrPlan, a.Network.Name(), a.ContainerID)
		}
		if slices.Contains(taken, a.IfName) {
			return nil, fmt.Errorf("%w: network %q: interface %q is in use", ErrPlan, a.Network.Name(), a.IfName)
		}
		if err := keepable(a); err != nil {
			return nil, fmt.Errorf("network %q (%s): %w", a.Network.Name(), a.IfName, err)
		}
		taken = append(taken, a.IfName)
	}
	return plan, nil
}

// taken returns the interface names that the records of l's container use. A
// damaged record is a matter of its own attachment: what it used is not known.
func (m *Manager) taken(ctx context.Context, l *scratch.Lock) ([]string, error) {
	rs, err := m.store().Records(ctx, l)
	if err := except(err, scratch.ErrCorrupt); err != nil {
		return nil, err
	}
	var taken []string
	for _, r := range rs {
		for _, e := range r.Value.Delegates {
			taken = append(taken, e.IfName)
		}
	}
	return taken, nil
}

// run carries out plan, for which r is recorded already: plan is the last of
// it. When run returns an error, plan has been undone, or there is a
// [*delegate.UndoError] in it; added is then what the plugins had reported.
func (m *Manager) run(ctx context.Context, l *scratch.Lock, t Transaction, plan []delegate.Attachment, r scratch.Record[record]) (added []delegate.Attached, err error) {
	added, err = m.invoker().AddAll(ctx, plan)
	if err != nil {
		return nil, err
	}
	reported := slices.Clone(added)
	if err := m.conclude(ctx, l, t, reported, added, r); err != nil {
		m.noteUndoing(l, r, reported)
		return reported, m.invoker().Undo(ctx, reported, err)
	}
	return added, nil
}

// noteUndoing takes back that as, the last of r, are added, should this process
// die while it undoes them.
func (m *Manager) noteUndoing(l *scratch.Lock, r scratch.Record[record], as []delegate.Attached) {
	r.Value = r.Value.with(as).leaving(len(as))
	if r.State == scratch.Planned {
		r.State = scratch.Deleting
	}
	_ = m.store().Note(l, r) // without it Del serves as well
}

// conclude does what is left of t when the plugins have reported: added is the
// same, for t to adjust.
func (m *Manager) conclude(ctx context.Context, l *scratch.Lock, t Transaction, reported, added []delegate.Attached, r scratch.Record[record]) error {
	if t.Adjust != nil {
		if err := t.Adjust(ctx, added); err != nil {
			return withEnd(ctx, err)
		}
		for i, a := range added {
			if bytes.Equal(a.Result, reported[i].Result) {
				continue
			}
			_, err := a.Decode()
			if err == nil {
				err = usable(a)
			}
			if err != nil {
				return fmt.Errorf("adjusted: %w", err)
			}
		}
	}
	r.State, r.Value = scratch.Added, r.Value.with(added)
	if err := m.store().Note(l, r); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("before the result was reported: %w", ended(ctx))
	}
	if t.Report != nil {
		return withEnd(ctx, t.Report(added))
	}
	return nil
}

// undone reports whether nothing is left of the ADD that failed with err.
func undone(err error) bool {
	var left *delegate.UndoError
	return !errors.As(err, &left)
}

// An addition is a running ADD, which a DEL of the same key cancels.
type addition struct{ cancel context.CancelCauseFunc }

// begin makes the ADD of k one that a DEL of k can cancel.
func (m *Manager) begin(ctx context.Context, k scratch.Key) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	a := &addition{cancel}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.adds == nil {
		m.adds = make(map[scratch.Key][]*addition)
	}
	m.adds[k] = append(m.adds[k], a)
	return ctx, func() {
		cancel(nil)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.adds[k] = slices.DeleteFunc(m.adds[k], func(b *addition) bool { return b == a })
		if len(m.adds[k]) == 0 {
			delete(m.adds, k)
		}
	}
}

// supersede cancels the ADDs of k that this Manager is doing or about to do.
func (m *Manager) supersede(k scratch.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.adds[k] {
		a.cancel(ErrSuperseded)
	}
}
