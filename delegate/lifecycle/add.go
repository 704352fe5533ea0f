package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/cause"
	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/scratch"
)

// A Transaction says what an ADD does. When a part of it fails, everything is
// undone. Its functions are called one at a time, in the order of the fields, with
// the container's lock held.
type Transaction struct {
	// NetNS is the path of the container's network namespace. The names of its
	// interfaces are among those that Plan receives as taken. Without NetNS
	// Plan receives the names in records only.
	NetNS string

	// Plan returns what to attach, in order; see also
	// [delegate.Invoker.Parallel]. taken holds the interface names in use, in
	// the container's records and in NetNS. A Transaction without Plan fails
	// with [ErrPlan].
	Plan func(ctx context.Context, taken []string) ([]delegate.Attachment, error)

	// Prepare, if not nil, makes what the plugins of a plan need, such as the Files
	// of its attachments. It runs when the plan has been recorded, before the first
	// plugin. If it fails, the plan has failed.
	Prepare func(ctx context.Context, plan []delegate.Attachment) error

	// Next, if not nil, returns another plan after one has failed and has been
	// undone completely. A plan fails because it is impossible, or because a
	// plugin fails; failed says why. If Next returns an empty plan,
	// the ADD fails with failed. If Next returns an error, the ADD fails with
	// it. The container stays locked in between.
	Next func(ctx context.Context, failed error) ([]delegate.Attachment, error)

	// Report, if not nil, runs last and prints the result. If it fails, the ADD
	// is undone.
	Report func(ctx context.Context, added []delegate.Attached) error
}

// Plan returns a function for [Transaction.Plan] that plans as.
func Plan(as ...delegate.Attachment) func(context.Context, []string) ([]delegate.Attachment, error) {
	return func(context.Context, []string) ([]delegate.Attachment, error) { return as, nil }
}

// Add attaches container k.ContainerID as t says, under the record k, and
// returns what was attached.
//
// The plan is recorded before the first plugin runs, and each result before the
// next plugin runs, so that Del can clean up after a crash. When anything fails,
// or ctx ends, Add undoes everything and removes the record before it returns. If
// undoing fails, the error is [delegate.ErrNotUndone] too, and the record stays
// for Del.
//
// An interface name in the plan must not be in a record of the container nor in
// the network namespace. Otherwise Add fails with [ErrPlan] before anything runs:
// an undo could remove the other interface.
//
// If k is recorded as added, Add fails with [ErrAdded] and does nothing. In three cases
// Add first removes what is recorded of k:
//
//   - An Add or Del was interrupted.
//   - k was added, and its container is [Dead]. After a restart of the machine a runtime may
//     attach a container that it had before.
//   - k was added, and its result names an interface on the host that certainly exists no more,
//     so that the one in the container is gone too. Another program has detached it.
//
// Add removes no other attachment of the container. A [scratch.Leftover] that cannot be removed
// does not hinder Add.
//
// A NetNS that exists and is no network namespace is refused with CNI code 8 before any plugin
// runs.
//
// If the record is damaged, Add fails with [scratch.ErrCorrupt]. Every error is an
// [*Error].
func (m *Manager) Add(ctx context.Context, k scratch.Key, t Transaction) ([]delegate.Attached, error) {
	ctx, finish := m.begin(ctx, k)
	defer finish()
	var added []delegate.Attached
	err := m.locked(ctx, opAdd, k, func(ctx context.Context, l *scratch.Lock) error {
		if m.onMachine().occupied(m.Root, t.NetNS) {
			return errNoNetNS
		}
		left, err := m.clear(ctx, l, k, t.NetNS)
		if err != nil {
			return err
		}
		a := &addition{
			m: m, t: t, lock: l,
			r:      scratch.Record[record]{Key: k, Created: time.Now(), Value: record{Type: m.Type, Leftovers: left, Host: m.onMachine().identify("", ownNetNS)}},
			forget: func() error { return m.forget(ctx, l, k) },
		}
		if left != nil {
			before := scratch.Record[record]{Key: k, State: scratch.Leftover, Value: record{Type: m.Type, Delegates: left}}
			a.forget = func() error { return m.note(ctx, l, before) }
		}
		if added, err = a.do(ctx); errors.Is(err, ErrPlan) {
			err = errors.Join(err, m.refuse(context.WithoutCancel(ctx), l, k, t.NetNS))
		}
		return err
	})
	return added, fail(opAdd, k, because(ctx, err))
}

// An addition is a Transaction that is carried out. It adds the delegates of r
// from first on.
type addition struct {
	m      *Manager
	t      Transaction
	lock   *scratch.Lock
	r      scratch.Record[record]
	first  int
	part   bool         // the record is that of an attachment which is there
	undo   *walk        // notes what of the plan is undone
	forget func() error // makes the record what it was before the addition
}

// do carries out the first plan that can be.
func (a *addition) do(ctx context.Context) ([]delegate.Attached, error) {
	a.first = len(a.r.Value.Delegates)
	if a.t.Plan == nil {
		return nil, impossible("there is no plan")
	}
	if ctx.Err() != nil { // it may have ended in clear
		return nil, cause.Of(ctx)
	}
	taken, err := a.taken(ctx)
	if err != nil {
		return nil, err
	}
	plan, err := a.t.Plan(ctx, slices.Clone(taken))
	if err != nil {
		return nil, err
	}
	for {
		added, final, err := a.try(ctx, plan, taken)
		if err == nil || !undone(err) {
			return added, err // what could not be undone stays in the record, for Del
		}
		plan = nil
		if !final && a.t.Next != nil && ctx.Err() == nil {
			var nextErr error
			if plan, nextErr = a.t.Next(ctx, err); nextErr == nil {
				nextErr = cause.Of(ctx)
			}
			if nextErr != nil {
				plan, err = nil, nextErr
			}
		}
		if len(plan) == 0 {
			return nil, errors.Join(err, a.forget())
		}
	}
}

// taken returns the interface names in use: those of the container's records, without the
// damaged ones, and those in the network namespace.
func (a *addition) taken(ctx context.Context) ([]string, error) {
	rs, err := a.m.store().Container(ctx, a.r.Key.ContainerID)
	if err := except(err, damaged); err != nil {
		return nil, err
	}
	there, err := a.m.interfaceNames(a.t.NetNS)
	return append(recordedNames(rs), there...), err
}

// free refuses es, which are planned, if one of their interface names is in use.
func (a *addition) free(es []entry, taken []string) error {
	there := map[string][]string{a.t.NetNS: nil} // its names are in taken
	for _, e := range es {
		names, known := there[e.NetNS.Path]
		if !known {
			var err error
			if names, err = a.m.interfaceNames(e.NetNS.Path); err != nil {
				return err
			}
			there[e.NetNS.Path] = names
		}
		if slices.Contains(taken, e.IfName) || slices.Contains(names, e.IfName) {
			return e.refused(a.r.Key, impossible("the interface name is in use, choose another"))
		}
		taken = append(taken, e.IfName)
	}
	return nil
}

// try checks plan, records it and carries it out. When it fails, plan has been undone, or
// the error is [delegate.ErrNotUndone] too. final says that another plan would
// fail as well.
func (a *addition) try(ctx context.Context, plan []delegate.Attachment, taken []string) (added []delegate.Attached, final bool, err error) {
	es, err := a.m.planned(a.r.Key, plan)
	if err == nil {
		err = a.free(es, taken)
	}
	if err != nil {
		return nil, false, err
	}
	a.r.State = scratch.Planned
	if a.part {
		a.r.State = scratch.Partial
		for i := range es {
			es[i].State = scratch.Planned
		}
	}
	a.r.Value.Sequential = a.m.invoker().Parallel <= 1
	a.r.Value.Delegates = slices.Concat(a.r.Value.Delegates[:a.first], es)
	if err := a.m.put(ctx, a.lock, a.r); err != nil {
		return nil, true, err
	}
	a.undo = &walk{m: a.m, lock: a.lock, r: &a.r, part: a.part, undo: true, verdicts: make([]verdict, len(a.r.Value.Delegates))}
	for i := range plan {
		a.undo.verdicts[a.first+i] = goes
	}
	added, final, err = a.carryOut(ctx, plan)
	if err != nil && undone(err) {
		if left := a.m.removeFiles(a.undo.files()); left != nil {
			a.keep(ctx, nil)
			err = fault.NotUndone(err, left)
		}
	}
	return added, final, err
}

// carryOut carries out the recorded plan, see try.
func (a *addition) carryOut(ctx context.Context, plan []delegate.Attachment) (added []delegate.Attached, final bool, err error) {
	if a.t.Prepare != nil {
		if err := a.t.Prepare(ctx, slices.Clone(plan)); err != nil {
			return nil, false, cause.Add(ctx, err)
		}
	}
	left := 0
	for _, p := range plan {
		left += len(p.Network.Plugins())
	}
	var noteErr error
	added, err = a.m.timed(ctx).AddAll(ctx, plan, func(i int, d delegate.Attached) error {
		if d.Gone != nil {
			a.undo.gone(ctx, a.first+i, d.Gone)
			return nil
		}
		e := &a.r.Value.Delegates[a.first+i]
		e.Result, e.Unfinished = d.Result, !d.Added
		if left--; left == 0 {
			a.settle()
			if c := a.m.clock(ctx); c != nil {
				a.r.Value.Timing, _ = json.Marshal(c.now()) // cannot fail: strings and numbers
			}
		}
		if a.part {
			noteErr = a.m.note(ctx, a.lock, a.r) // with the last plugin several delegates change
		} else {
			noteErr = a.m.noteChange(ctx, a.lock, a.r, change{At: a.first + i, Result: e.Result, Unfinished: e.Unfinished, Timing: a.r.Value.Timing})
		}
		return noteErr
	})
	if err != nil {
		if !undone(err) {
			a.keep(ctx, added)
		}
		return nil, noteErr != nil, err
	}
	if err = a.report(ctx, added); err == nil {
		return added, false, nil
	}
	a.undo.mark(ctx) // should this process die while it undoes them
	return nil, true, a.m.timed(ctx).Undo(ctx, added, err, func(i int, d delegate.Attached) error {
		a.undo.gone(ctx, a.first+i, d.Gone)
		return nil
	})
}

// settle marks in the record everything as added.
func (a *addition) settle() {
	for i := range a.r.Value.Delegates[a.first:] {
		a.r.Value.Delegates[a.first+i].State = ""
	}
	a.r.State = a.r.Value.whole()
}

// keep records that everything in the plan is gone except left.
func (a *addition) keep(ctx context.Context, left []delegate.Attached) {
	for i := range a.r.Value.Delegates[a.first:] {
		e := &a.r.Value.Delegates[a.first+i]
		at := slices.IndexFunc(left, func(d delegate.Attached) bool { return d.IfName == e.IfName })
		if at >= 0 {
			e.Gone = left[at].Gone
			continue
		}
		e.Gone = allOf(e.Network)
	}
	a.undo.mark(ctx)
}

// report runs Report after the plugins.
func (a *addition) report(ctx context.Context, added []delegate.Attached) error {
	if ctx.Err() != nil {
		return fmt.Errorf("before the result was reported: %w", cause.Of(ctx))
	}
	if a.t.Report == nil {
		return nil
	}
	return cause.Add(ctx, a.t.Report(ctx, slices.Clone(added)))
}

// undone reports whether an ADD that failed with err has been undone completely.
func undone(err error) bool { return !errors.Is(err, delegate.ErrNotUndone) }
