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

// A Transaction is what an ADD consists of beside the plugins. All of it
// succeeds, or what was attached is detached again.
type Transaction struct {
	// Plan says what to attach, in order. It is called with the lock held,
	// with the interface names that the container's records use already.
	Plan func(taken []string) ([]delegate.Attachment, error)

	// Adjust, when not nil, does what is left to do in the container when
	// all is attached. It may change the results; they are recorded as it
	// leaves them, and CHECK compares with that.
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
// record fails with [scratch.ErrCorrupt].
func (m *Manager) Add(ctx context.Context, k scratch.Key, t Transaction) ([]delegate.Attached, error) {
	ctx, finish := m.begin(ctx, k)
	defer finish()
	var added []delegate.Attached
	err := m.locked(ctx, k.ContainerID, func(ctx context.Context, l *scratch.Lock) error {
		plan, err := m.plan(ctx, l, k, t)
		if err != nil {
			return err
		}
		value := newRecord(delegate.Intend(plan))
		if err := m.store().Put(k, scratch.Planned, value); err != nil {
			return errors.Join(err, m.store().Delete(k)) // nothing has run
		}
		added, err = m.run(ctx, t, plan, scratch.Record[record]{Key: k, Value: value})
		var left *delegate.UndoError
		switch {
		case errors.As(err, &left):
			_ = m.store().Note(scratch.Record[record]{Key: k, State: scratch.Deleting, Value: value}) // "planned" serves as well
		case err != nil:
			err = errors.Join(err, m.store().Delete(k))
		}
		return err
	})
	if err != nil {
		return nil, fail("ADD", k, err)
	}
	return added, nil
}

// plan settles what an earlier call has left of k and plans t.
func (m *Manager) plan(ctx context.Context, l *scratch.Lock, k scratch.Key, t Transaction) ([]delegate.Attachment, error) {
	r, err := m.store().Get(k)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case r.State == scratch.Added:
		return nil, ErrAdded
	default:
		if err := m.remove(ctx, l, k, ""); err != nil {
			return nil, err
		}
	}
	return m.fresh(k, t)
}

// fresh plans t and refuses a plan that cannot be carried out.
func (m *Manager) fresh(k scratch.Key, t Transaction) ([]delegate.Attachment, error) {
	rs, err := m.store().Container(k.ContainerID)
	if err != nil {
		return nil, err
	}
	var taken []string
	for _, r := range rs {
		for _, e := range r.Value.Delegates {
			taken = append(taken, e.IfName)
		}
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
		taken = append(taken, a.IfName)
	}
	return plan, nil
}

// run carries out plan, for which r is recorded already: plan is the last of
// it. When run returns an error, plan has been undone, or there is a
// [*delegate.UndoError] in it.
func (m *Manager) run(ctx context.Context, t Transaction, plan []delegate.Attachment, r scratch.Record[record]) ([]delegate.Attached, error) {
	added, err := m.invoker().AddAll(ctx, plan)
	if err != nil {
		return nil, err
	}
	if err := m.conclude(ctx, t, added, r); err != nil {
		return nil, m.invoker().Undo(ctx, added, err)
	}
	return added, nil
}

func (m *Manager) conclude(ctx context.Context, t Transaction, added []delegate.Attached, r scratch.Record[record]) error {
	if t.Adjust != nil {
		if err := t.Adjust(ctx, added); err != nil {
			return err
		}
	}
	r.State, r.Value = scratch.Added, r.Value.with(added)
	if err := m.store().Note(r); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w before the result was reported: %w", err, context.Cause(ctx))
	}
	if t.Report != nil {
		return t.Report(added)
	}
	return nil
}

// begin makes the ADD of k one that a DEL of k can cancel.
func (m *Manager) begin(ctx context.Context, k scratch.Key) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	a := &addition{cancel: cancel}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.adds == nil {
		m.adds = make(map[scratch.Key]*addition)
	}
	before := m.adds[k]
	a.cancel = func(cause error) {
		cancel(cause)
		if before != nil {
			before.cancel(cause)
		}
	}
	m.adds[k] = a
	return ctx, func() {
		cancel(nil)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.adds[k] == a {
			delete(m.adds, k)
		}
	}
}

// supersede cancels the ADDs of k that are running in this Manager.
func (m *Manager) supersede(k scratch.Key) {
	m.mu.Lock()
	a := m.adds[k]
	m.mu.Unlock()
	if a != nil {
		a.cancel(ErrSuperseded)
	}
}
