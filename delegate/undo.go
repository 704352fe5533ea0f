package delegate

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/metacni/metacni/internal/fault"
)

// Undo removes as, last first, because of cause. When that succeeds it returns
// cause, and else an [ErrNotUndone] with both errors. Use it when a step of your
// own fails after an Add. With a nil cause Undo returns what could not be undone,
// or nil.
//
// Undo goes on past plugins that fail, and when ctx has ended. Its time is limited
// by [Invoker.UndoTimeout]. All plugins share that time: a plugin that hangs is
// stopped early enough for those after it to have their turn. The order, the
// effect of [Invoker.Parallel] and the calls of each note are those of
// [Invoker.DelAll].
func (iv *Invoker) Undo(ctx context.Context, as []Attached, cause error, note ...func(i int, a Attached) error) error {
	return iv.undo(ctx, slices.Clone(as), cause, oneAtATime(note))
}

// undo is Undo. It notes in as which plugins are gone.
func (iv *Invoker) undo(ctx context.Context, as []Attached, cause error, tell note) error {
	begin, total := iv.rounds(as)
	if total == 0 {
		return cause // nothing is left
	}
	ctx, ended := iv.Stages.Begin(ctx, StageUndo, as[0].event(CommandAdd))
	err := iv.removeAll(ctx, as, begin, newBudget(iv.UndoTimeout, total), tell)
	ended(err)
	switch {
	case err == nil:
		return cause
	case cause == nil:
		return err
	}
	return fault.NotUndone(cause, err)
}

// rounds returns the round in which each of as is begun, and how many rounds all
// take, if every plugin's turn takes one round. With shorter turns nothing is
// begun later.
func (iv *Invoker) rounds(as []Attached) (begin []int, total int) {
	// The round from which on each place is free; see backward.
	places := make([]int, max(1, min(iv.Parallel, len(as))))
	begin = make([]int, len(as))
	for i := range slices.Backward(as) {
		begin[i] = slices.Min(places)
		places[slices.Index(places, begin[i])] += as[i].left()
	}
	return begin, slices.Max(places)
}

// killTime is how long a turn may take to end after its context has. It is part
// of the turn.
const killTime = time.Second

// A turnOverError ends the context of a plugin whose turn is over. It says how
// long [Process] may take from SIGTERM to SIGKILL, so that the turns of others
// are not used up by that.
type turnOverError struct{ grace time.Duration }

func (*turnOverError) Error() string { return "its share of the undo timeout has passed" }
func (*turnOverError) Unwrap() error { return context.DeadlineExceeded }

// A budget is the time for undoing: long while the caller's context lives,
// limited once that has ended. It is divided into rounds.
type budget struct {
	limit  time.Duration
	end    time.Time // while the caller's context lives
	rounds int

	mu    sync.Mutex // protects short
	short time.Time  // limit after that context's end; zero while it lives
}

func newBudget(limit time.Duration, rounds int) *budget {
	limit = cmp.Or(limit, defaultUndoTimeout)
	return &budget{limit: limit, end: time.Now().Add(10 * limit), rounds: rounds}
}

// turn returns the context for one plugin, whose turn is in a round from 0 on:
// an equal share of what is left for that round and those after it. Without a budget that is
// the caller's context.
func (b *budget) turn(caller context.Context, round int) (context.Context, context.CancelFunc) {
	if b == nil {
		return caller, func() {}
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(caller))
	endBy := func(end time.Time) {
		share := time.Until(end) / time.Duration(b.rounds-round)
		grace := max(0, min(killTime, share/2))
		timer := time.AfterFunc(share-grace, func() { cancel(&turnOverError{grace}) })
		context.AfterFunc(ctx, func() { timer.Stop() })
	}
	endBy(b.end)
	unwatch := context.AfterFunc(caller, func() { endBy(b.shortEnd()) })
	return ctx, func() {
		unwatch()
		cancel(nil)
	}
}

// shortEnd is when the budget ends now that the caller's context has.
func (b *budget) shortEnd() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.short.IsZero() {
		b.short = time.Now().Add(b.limit)
	}
	return b.short
}
