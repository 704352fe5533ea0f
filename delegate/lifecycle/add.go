package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/cause"
	"github.com/metacni/metacni/scratch"
)

// A Transaction is what an ADD consists of beside the plugins. All of it
// succeeds, or what was attached is detached again. Its functions are called
// with the container's lock held, one at a time, in the order of the fields.
type Transaction struct {
	// NetNS is the path of the container's network namespace. The names of
	// the interfaces in it are in what Plan is told is taken. Without it Plan
	// is told of the names in records only.
	NetNS string

	// Plan says what to attach, in order; see also [delegate.Invoker.Parallel].
	// taken are the interface names in use, in the container's records and in
	// NetNS. A Transaction without Plan fails with [ErrPlan].
	Plan func(ctx context.Context, taken []string) ([]delegate.Attachment, error)

	// Next, when not nil, is asked for another plan when one has failed and
	// has been undone whole: because it could not be carried out, or because
	// of a plugin or Adjust. failed says why. An empty plan ends the ADD,
	// which fails with failed; an error ends it as well. The container stays
	// locked in between, so that no DEL finds nothing while an ADD goes on.
	Next func(ctx context.Context, failed error) ([]delegate.Attachment, error)

	// Adjust, when not nil, does what is left to do in the container when
	// all is attached. It may change the results; they are recorded as it
	// leaves them, and CHECK compares with that. It must leave results that
	// can be decoded. An undo that follows uses the plugins' original results.
	Adjust func(ctx context.Context, added []delegate.Attached) error

	// Report, when not nil, runs last and prints the result; if it fails, the
	// ADD is undone.
	Report func(ctx context.Context, added []delegate.Attached) error

	// Undone, when not nil, is called when an ADD that had a record has failed
	// with cause and nothing is left of it, before the record is removed. A
	// caller who keeps state of its own about the attachment removes it there.
	// Its context is alive for the undo timeout, whatever has ended. When it
	// fails the record stays, for Del, which runs no plugin and does not call
	// Undone.
	Undone func(ctx context.Context, cause error) error
}

// Plan returns a plan of fixed attachments, for [Transaction.Plan].
func Plan(as ...delegate.Attachment) func(context.Context, []string) ([]delegate.Attachment, error) {
	return func(context.Context, []string) ([]delegate.Attachment, error) { return as, nil }
}

// Add attaches container k.ContainerID as t says, under the record k, and
// returns what was attached.
//
// The plan is recorded before the first plugin runs, and each result before
// the next plugin does, so that whatever happens can be undone by Del. When
// anything fails, or ctx ends, everything is undone before Add returns and the
// record is removed; where undoing fails the error has a
// [*delegate.UndoError] in it and the record stays, for Del.
//
// A plan with an interface name that a record of the container has, or that
// exists in the network namespace, fails with [ErrPlan] before anything runs:
// undoing the plugin's failure could remove the other interface.
//
// On an attachment that is recorded as added Add fails with [ErrAdded] and
// does nothing. What an interrupted Add or Del left is undone first. A damaged
// record fails with [scratch.ErrCorrupt]. Every error is an [*Error].
func (m *Manager) Add(ctx context.Context, k scratch.Key, t Transaction) ([]delegate.Attached, error) {
	ctx, finish := m.begin(ctx, k)
	defer finish()
	var added []delegate.Attached
	err := m.locked(ctx, k.ContainerID, func(ctx context.Context, l *scratch.Lock) error {
		if err := m.clear(ctx, l, k); err != nil {
			return err
		}
		a := &addition{
			m: m, t: t, lock: l, whileRunning: scratch.Planned,
			r:      scratch.Record[record]{Key: k, Created: time.Now()},
			forget: func() error { return m.store().Delete(l, k) },
		}
		var err error
		added, err = a.do(ctx)
		return err
	})
	return added, fail(OpAdd, k, because(ctx, err))
}

// clear undoes what an earlier call has left of k, and refuses what is whole.
func (m *Manager) clear(ctx context.Context, l *scratch.Lock, k scratch.Key) error {
	r, err := m.store().Get(k)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case r.State.Attached():
		return ErrAdded
	}
	if err := m.remove(ctx, l, k, ""); err != nil {
		return fmt.Errorf("what an earlier operation left cannot be removed: %w", err)
	}
	return nil
}

// An addition is a Transaction under way: the last delegates of r, from first
// on, are those it adds.
type addition struct {
	m            *Manager
	t            Transaction
	lock         *scratch.Lock
	r            scratch.Record[record]
	first        int
	whileRunning scratch.State
	recorded     bool         // a plan has been
	forget       func() error // makes the record what it was before
}

// do carries out the first plan that can be.
func (a *addition) do(ctx context.Context) ([]delegate.Attached, error) {
	a.first = len(a.r.Value.Delegates)
	if a.t.Plan == nil {
		return nil, impossible("there is no plan")
	}
	if ctx.Err() != nil { // while what was there before was removed
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
		switch {
		case err == nil:
			return added, nil
		case !undone(err):
			return nil, err // the record stays, for Del
		case final || a.t.Next == nil || ctx.Err() != nil:
			return nil, a.end(ctx, err)
		}
		next, nextErr := a.t.Next(ctx, err)
		switch {
		case nextErr != nil:
			return nil, a.end(ctx, nextErr)
		case ctx.Err() != nil:
			return nil, a.end(ctx, cause.Of(ctx))
		case len(next) == 0:
			return nil, a.end(ctx, err)
		}
		plan = next
	}
}

// end forgets the addition, of which nothing is left, because of err.
func (a *addition) end(ctx context.Context, err error) error {
	if a.recorded && a.t.Undone != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.m.undoTimeout())
		defer cancel()
		if hookErr := a.t.Undone(ctx, err); hookErr != nil {
			a.keep(nil)
			return &delegate.UndoError{Err: err, Undo: hookErr}
		}
	}
	return also(err, a.forget())
}

// taken returns the interface names in use. A damaged record is a matter of its
// own attachment: what it used is not known.
func (a *addition) taken(ctx context.Context) ([]string, error) {
	rs, err := a.m.store().Records(ctx, a.lock)
	if err := except(except(err, scratch.ErrCorrupt), scratch.ErrVersion); err != nil {
		return nil, err
	}
	var taken []string
	for _, r := range rs {
		for _, e := range r.Value.Delegates {
			taken = append(taken, e.IfName)
		}
	}
	there, err := a.m.interfaceNames(a.t.NetNS)
	return append(taken, there...), err
}

// check refuses a plan that cannot be carried out.
func (a *addition) check(plan []delegate.Attachment, taken []string) error {
	if err := recordable(a.r.Key, plan); err != nil {
		return err
	}
	there := map[string][]string{a.t.NetNS: nil} // its names are in taken
	for _, p := range plan {
		names, known := there[p.NetNS]
		if !known {
			var err error
			if names, err = a.m.interfaceNames(p.NetNS); err != nil {
				return err
			}
			there[p.NetNS] = names
		}
		if slices.Contains(taken, p.IfName) || slices.Contains(names, p.IfName) {
			return refused(p, impossible("the interface name is in use, choose another"))
		}
		taken = append(taken, p.IfName)
	}
	return nil
}

// try records plan and carries it out. When it fails, plan has been undone, or
// the error has a [*delegate.UndoError] in it. final says that another plan
// would fail as well.
func (a *addition) try(ctx context.Context, plan []delegate.Attachment, taken []string) (added []delegate.Attached, final bool, err error) {
	if err := a.check(plan, taken); err != nil {
		return nil, false, err
	}
	a.r.State = a.whileRunning
	a.r.Value.Delegates = slices.Concat(a.r.Value.Delegates[:a.first], entries(a.m.Root, plan))
	for i := range plan {
		a.r.Value.Delegates[a.first+i].Half = a.whileRunning == scratch.Partial
	}
	if err := a.m.put(ctx, a.lock, a.r); err != nil {
		return nil, true, err
	}
	a.recorded = true
	left := 0
	for _, p := range plan {
		left += len(p.Network.Plugins())
	}
	var noteErr error
	added, err = a.m.invoker().AddAll(ctx, plan, func(i int, d delegate.Attached) error {
		if d.Gone != nil {
			a.noteGone(i, d)
			return nil
		}
		e := &a.r.Value.Delegates[a.first+i]
		e.Result, e.Unfinished = d.Result, !d.Added
		if left--; left == 0 && a.t.Adjust == nil {
			a.settle()
		}
		if a.whileRunning == scratch.Partial {
			noteErr = a.m.store().Note(a.lock, a.r) // with the last plugin several delegates change
		} else {
			noteErr = a.m.store().NoteChange(a.lock, a.r, change{At: a.first + i, Result: e.Result, Unfinished: e.Unfinished})
		}
		return noteErr
	})
	if err != nil {
		if !undone(err) {
			a.keep(added)
		}
		return nil, noteErr != nil, err
	}
	reported := slices.Clone(added)
	if final, err = a.conclude(ctx, reported, added); err == nil {
		return added, false, nil
	}
	for i, d := range reported { // not as they have been adjusted
		a.r.Value.Delegates[a.first+i].Result = d.Result
	}
	a.noteUndoing() // should this process die while it undoes them
	return nil, final, a.m.invoker().Undo(ctx, reported, err, func(i int, d delegate.Attached) error {
		a.noteGone(i, d)
		return nil
	})
}

// settle makes of the record one of what has been added.
func (a *addition) settle() {
	for i := range a.r.Value.Delegates[a.first:] {
		a.r.Value.Delegates[a.first+i].Half = false
	}
	a.r.State = a.r.Value.whole()
}

// noteGone records which plugins of the i'th delegate have been undone, unless
// nothing is left of any: then the record goes.
func (a *addition) noteGone(i int, d delegate.Attached) {
	es := a.r.Value.Delegates[a.first:]
	es[i].Gone = d.Gone
	if slices.ContainsFunc(es, entry.left) {
		a.noteUndoing()
	}
}

// keep records that of the plan only left is left.
func (a *addition) keep(left []delegate.Attached) {
	for i := range a.r.Value.Delegates[a.first:] {
		e := &a.r.Value.Delegates[a.first+i]
		at := slices.IndexFunc(left, func(d delegate.Attached) bool { return d.IfName == e.IfName })
		if at >= 0 {
			e.Gone = left[at].Gone
			continue
		}
		e.Gone = allOf(e.Network)
	}
	a.noteUndoing()
}

// noteUndoing records that the plan is being undone. A full disk must not keep
// it from being undone, and Del serves as well without it.
func (a *addition) noteUndoing() {
	a.r.State = scratch.Deleting
	if a.whileRunning == scratch.Partial {
		a.r.State = scratch.Partial
		for i := range a.r.Value.Delegates[a.first:] {
			a.r.Value.Delegates[a.first+i].Half = true
		}
	}
	_ = a.m.store().Note(a.lock, a.r)
}

// conclude does what is left of the transaction when the plugins have reported:
// added is the same, to adjust.
func (a *addition) conclude(ctx context.Context, reported, added []delegate.Attached) (final bool, err error) {
	if a.t.Adjust != nil {
		if err := a.t.Adjust(ctx, added); err != nil {
			return false, cause.Add(ctx, err)
		}
		if err := checkAdjusted(reported, added); err != nil {
			return false, err
		}
		for i, d := range added {
			a.r.Value.Delegates[a.first+i].Result = d.Result
		}
		a.settle()
		if err := a.m.store().Note(a.lock, a.r); err != nil {
			return true, err
		}
	}
	if ctx.Err() != nil {
		return true, fmt.Errorf("before the result was reported: %w", cause.Of(ctx))
	}
	if a.t.Report != nil {
		return true, cause.Add(ctx, a.t.Report(ctx, added))
	}
	return true, nil
}

// checkAdjusted refuses results that have been changed to what is none.
func checkAdjusted(reported, added []delegate.Attached) error {
	for i, d := range added {
		if string(d.Result) == string(reported[i].Result) {
			continue
		}
		_, err := d.Decode()
		if err == nil {
			err = usable(d)
		}
		if err != nil {
			return fmt.Errorf("the adjusted result: %w", err)
		}
	}
	return nil
}

// undone reports whether nothing is left of the ADD that failed with err.
func undone(err error) bool {
	var left *delegate.UndoError
	return !errors.As(err, &left)
}
