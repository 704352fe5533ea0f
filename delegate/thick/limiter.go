package thick

import "context"

// A Load says how many operations of one kind there are.
type Load struct {
	InFlight int // running, including undo
	Queued   int // waiting for their container or their turn
}

// A limiter limits how many operations run at once and how many more wait for
// their turn: first come, first served.
type limiter struct {
	places chan struct{} // has an element for each operation that runs or waits
	turns  chan struct{} // has an element for each that runs
}

func newLimiter(running, waiting int) *limiter {
	return &limiter{places: make(chan struct{}, running+waiting), turns: make(chan struct{}, running)}
}

// admit takes a place and reports whether there was one. leave returns it.
func (l *limiter) admit() bool {
	select {
	case l.places <- struct{}{}:
		return true
	default:
		return false
	}
}

func (l *limiter) leave() { <-l.places }

// wait waits until the turn has come. If ctx ends first, wait returns why. release ends the
// turn.
func (l *limiter) wait(ctx context.Context) error {
	select {
	case l.turns <- struct{}{}: // those that wait to send do so in order
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *limiter) release() { <-l.turns }

func (l *limiter) load() Load {
	running := len(l.turns)
	return Load{InFlight: running, Queued: max(0, len(l.places)-running)}
}
