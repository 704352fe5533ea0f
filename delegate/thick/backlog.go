package thick

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/metacni/metacni/delegate/thick/internal/queue"
)

// Pauses between the tries to do a DEL of the queue, and to read the queue.
const (
	firstPause   = time.Second
	longestPause = time.Minute

	listTimeout = 5 * time.Second // for a shim that writes to the queue
)

// A backlog plans which DEL of the queue is tried next. It is only a plan: what
// is owed is what the files say.
type backlog struct {
	most int // at once

	mu      sync.Mutex // guards what follows
	debts   map[string]*debt
	running int
	relist  time.Time     // when the queue is to be read again
	odd     string        // what was odd about the queue when it was last read
	wake    chan struct{} // closed to end a wait; nil when nobody waits
}

// A debt is a DEL of the queue, by the name of its file.
type debt struct {
	running bool
	wanted  bool // an ADD waits for it
	failed  int
	due     time.Time
	err     error // of the last try
}

// old reports whether the queue is to be read again.
func (b *backlog) old() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.relist.After(time.Now())
}

// listed notes what is in the queue, unless it could not be read, which err
// says. It reports whether there is something about it that was not there
// before.
func (b *backlog) listed(names []string, odd, err error) (news bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.relist = time.Now().Add(firstPause)
	if err == nil {
		b.relist = time.Now().Add(longestPause)
		maps.DeleteFunc(b.debts, func(name string, d *debt) bool {
			_, there := slices.BinarySearch(names, name)
			return !there && !d.running
		})
		for _, name := range names {
			b.add(name)
		}
	}
	text := ""
	if all := errors.Join(odd, err); all != nil {
		text = all.Error()
	}
	news = text != b.odd && text != ""
	b.odd = text
	return news
}

// add adds a debt, if it is not there, and returns it. b.mu is held.
func (b *backlog) add(name string) *debt {
	if b.debts == nil {
		b.debts = make(map[string]*debt)
	}
	d := b.debts[name]
	if d == nil {
		d = &debt{due: time.Now()}
		b.debts[name] = d
	}
	return d
}

// next returns what is to be tried now, unless enough is running: what an ADD
// waits for first, then what has failed least often, so that what hangs does not
// keep the others from their turn.
func (b *backlog) next() (name string, found bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running >= b.most {
		return "", false
	}
	now := time.Now()
	var best *debt
	for _, n := range slices.Sorted(maps.Keys(b.debts)) {
		d := b.debts[n]
		if !d.running && !d.due.After(now) && (best == nil || d.before(best)) {
			name, best = n, d
		}
	}
	if best == nil {
		return "", false
	}
	best.running, best.wanted = true, false
	b.running++
	return name, true
}

func (d *debt) before(other *debt) bool {
	if d.wanted != other.wanted {
		return d.wanted
	}
	return d.failed < other.failed
}

// tried notes that a try has ended with err, and reports whether that is
// something else than the last time.
func (b *backlog) tried(name string, err error) (news bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.hurry()
	d := b.debts[name]
	b.running--
	if err == nil {
		delete(b.debts, name)
		return false
	}
	if errors.Is(err, queue.ErrDamaged) {
		b.relist = time.Time{} // which tells of it from now on
	}
	news = d.err == nil || d.err.Error() != err.Error()
	d.due = time.Now().Add(min(firstPause<<min(d.failed, 16), longestPause))
	d.running, d.err = false, err
	d.failed++
	return news
}

// want has a debt tried soon, before the others: an ADD waits for it.
func (b *backlog) want(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.add(name)
	d.wanted = true
	if soon := time.Now().Add(firstPause); d.due.After(soon) {
		d.due = soon
	}
	b.hurry()
}

// hurry ends the wait. b.mu is held.
func (b *backlog) hurry() {
	if b.wake != nil {
		close(b.wake)
		b.wake = nil
	}
}

// wait waits until there may be something to do, and reports whether ctx has not
// ended.
func (b *backlog) wait(ctx context.Context) bool {
	b.mu.Lock()
	until := b.relist
	for _, d := range b.debts {
		if b.running < b.most && !d.running && d.due.Before(until) {
			until = d.due
		}
	}
	wake := make(chan struct{})
	b.wake = wake
	b.mu.Unlock()
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-t.C:
	case <-wake:
	case <-ctx.Done():
		return false
	}
	return true
}

// why returns what is wrong with the queue, for people.
func (b *backlog) why() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	const most = 8
	var all []error
	if b.odd != "" {
		all = append(all, errors.New(b.odd))
	}
	failed := 0
	for _, name := range slices.Sorted(maps.Keys(b.debts)) {
		if d := b.debts[name]; d.err != nil {
			if failed++; failed <= most {
				all = append(all, d.err)
			}
		}
	}
	if more := failed - most; more > 0 {
		all = append(all, fmt.Errorf("and %d more have failed", more))
	}
	return errors.Join(all...)
}
