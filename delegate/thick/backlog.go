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

// Pauses between attempts to do a DEL of the queue, and to read the queue.
const (
	firstPause   = time.Second
	longestPause = time.Minute

	listTimeout = 5 * time.Second // for a shim that writes to the queue
)

// A backlog plans which DEL of the queue is tried next. The files of the queue
// decide which DELs there are.
type backlog struct {
	most int // DELs at once

	mu      sync.Mutex // guards the following
	entries map[string]*entry
	running int
	relist  time.Time     // when the queue must be read again
	unread  error         // why the queue could not be read the last time, or nil
	odd     string        // problems when the queue was last read
	wake    chan struct{} // closed to end a wait; nil when nobody waits
}

// An entry is a DEL of the queue.
type entry struct {
	running bool
	wanted  bool // an ADD waits for it
	failed  int
	due     time.Time
	err     error // of the last try
}

// old reports whether the queue must be read again.
func (b *backlog) old() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.relist.After(time.Now())
}

// listed takes over what was read from the queue; err says that it could not be
// read. It reports whether odd and err differ from the last time.
func (b *backlog) listed(names []string, odd, err error) (news bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.relist, b.unread = time.Now().Add(firstPause), err
	if err == nil {
		b.relist = time.Now().Add(longestPause)
		maps.DeleteFunc(b.entries, func(name string, d *entry) bool {
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

// failed returns why the queue could not be read the last time, or nil.
func (b *backlog) failed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unread
}

// add returns the entry with the name, and adds it if there is none. b.mu is held.
func (b *backlog) add(name string) *entry {
	if b.entries == nil {
		b.entries = make(map[string]*entry)
	}
	d := b.entries[name]
	if d == nil {
		d = &entry{due: time.Now()}
		b.entries[name] = d
	}
	return d
}

// next returns the DEL to try now, unless enough are running. DELs that an ADD
// waits for come first, then those that have failed least often, so that a DEL
// that hangs does not delay the others.
func (b *backlog) next() (name string, found bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running >= b.most {
		return "", false
	}
	now := time.Now()
	var best *entry
	for _, n := range slices.Sorted(maps.Keys(b.entries)) {
		d := b.entries[n]
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

func (d *entry) before(other *entry) bool {
	if d.wanted != other.wanted {
		return d.wanted
	}
	return d.failed < other.failed
}

// tried notes that an attempt has ended with err, and reports whether err differs
// from that of the last attempt.
func (b *backlog) tried(name string, err error) (news bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.hurry()
	d := b.entries[name]
	b.running--
	if err == nil {
		delete(b.entries, name)
		return false
	}
	if errors.Is(err, queue.ErrDamaged) {
		b.relist = time.Time{} // to report the damaged file from now on
	}
	news = d.err == nil || d.err.Error() != err.Error()
	d.due = time.Now().Add(min(firstPause<<min(d.failed, 16), longestPause))
	d.running, d.err = false, err
	d.failed++
	return news
}

// want makes the DEL the next to be tried, soon, because an ADD waits for it.
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

// hurry ends a wait. b.mu is held.
func (b *backlog) hurry() {
	if b.wake != nil {
		close(b.wake)
		b.wake = nil
	}
}

// wait waits until there may be something to do. It returns false when ctx has
// ended.
func (b *backlog) wait(ctx context.Context) bool {
	b.mu.Lock()
	until := b.relist
	for _, d := range b.entries {
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

// why returns the problems of the queue, for people.
func (b *backlog) why() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	const most = 8
	var all []error
	if b.odd != "" {
		all = append(all, errors.New(b.odd))
	}
	failed := 0
	for _, name := range slices.Sorted(maps.Keys(b.entries)) {
		if d := b.entries[name]; d.err != nil {
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
