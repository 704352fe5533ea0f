package delegate

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Undo removes as, last first, because of cause, and returns cause when that
// succeeded, or else an [*UndoError] with both. It is for programs with work
// of their own to do after an Add: when that work fails, the Add is undone.
//
// Undoing goes on when ctx has ended, and past plugins that fail. Its time is
// limited by [Invoker.UndoTimeout] and shared: a plugin that hangs is stopped
// early enough for those after it to have their turn.
func (iv *Invoker) Undo(ctx context.Context, as []Attached, cause error) error {
	return iv.undo(ctx, removals(as), cause)
}

func (iv *Invoker) undo(ctx context.Context, rs []removal, cause error) error {
	b := newBudget(ctx, iv.UndoTimeout)
	for _, r := range rs {
		b.turns += r.plugins
	}
	var errs []error
	for i := len(rs) - 1; i >= 0; i-- {
		errs = append(errs, iv.remove(rs[i], b.turn))
	}
	if err := errors.Join(errs...); err != nil {
		return &UndoError{Err: cause, Undo: err}
	}
	return cause
}

// killTime is how long a turn may take to end after its context has, see
// [Process]; it is part of the turn.
const killTime = time.Second

// A budget is the time for undoing: long while the caller's context lives,
// limited once that has ended.
type budget struct {
	caller context.Context //nolint:containedctx // what the budget is measured against
	limit  time.Duration
	end    time.Time // while caller lives
	turns  int       // plugins that have not had their turn yet

	mu    sync.Mutex
	short time.Time // limit after caller's end; zero while it lives
}

func newBudget(caller context.Context, limit time.Duration) *budget {
	if limit == 0 {
		limit = DefaultUndoTimeout
	}
	return &budget{caller: caller, limit: limit, end: time.Now().Add(10 * limit)}
}

// turn returns the context for one plugin: an equal share of what is left.
func (b *budget) turn() (context.Context, context.CancelFunc) {
	turns := b.turns
	b.turns--
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(b.caller))
	expire := func() { cancel(context.DeadlineExceeded) }
	long := time.AfterFunc(share(b.end, turns), expire)
	unwatch := context.AfterFunc(b.caller, func() {
		time.AfterFunc(share(b.shortEnd(), turns), expire)
	})
	return ctx, func() {
		long.Stop()
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

func share(end time.Time, turns int) time.Duration {
	s := time.Until(end) / time.Duration(turns)
	return max(s/2, s-killTime)
}
