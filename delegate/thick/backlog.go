package thick

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Pauses between attempts to do a DEL of the queue, and to read the queue.
const (
	firstPause   = time.Second
	longestPause = time.Minute
)

// A backlog has the DELs of the queue that are being done. The files of the queue decide
// which DELs there are.
type backlog struct {
	wake chan struct{} // has an element when the queue is to be read again

	mu     sync.Mutex // guards the following
	dels   map[string]*queuedDel
	unread error // why the queue could not be read the last time, or nil
	odd    error // all that was wrong with it, for people
}

// A queuedDel is a DEL of the queue, until it is done.
type queuedDel struct {
	name    string    // of its file
	running bool      // or waiting for its turn; otherwise it is tried when it is due
	due     time.Time // of the next attempt
	pause   time.Duration
	err     error // of the last attempt
}

// listed takes over what was read from the queue; err says that it could not be
// read. It reports whether odd and err differ from the last time.
func (b *backlog) listed(names []string, odd, err error) (news bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unread = err; err == nil {
		maps.DeleteFunc(b.dels, func(name string, d *queuedDel) bool { return !d.running && !slices.Contains(names, name) })
	}
	for _, name := range names {
		if b.dels[name] == nil {
			b.dels[name] = &queuedDel{name: name, pause: firstPause}
		}
	}
	all := errors.Join(odd, err)
	news = isNews(b.odd, all)
	b.odd = all
	return news
}

// isNews reports whether err is an error that differs from the last one.
func isNews(last, err error) bool {
	return err != nil && (last == nil || last.Error() != err.Error())
}

// begin returns the DELs that are due, which are running from now on, and how long to wait
// for the next.
func (b *backlog) begin() (due []*queuedDel, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wait = longestPause
	if b.unread != nil {
		wait = firstPause
	}
	for _, d := range b.dels {
		switch left := time.Until(d.due); {
		case d.running:
		case left <= 0:
			d.running = true
			due = append(due, d)
		default:
			wait = min(wait, left)
		}
	}
	return due, wait
}

// tried notes that an attempt has ended with err, and reports whether err differs
// from that of the last attempt.
func (b *backlog) tried(d *queuedDel, err error) (news bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.hurry()
	if err == nil {
		delete(b.dels, d.name)
		return false
	}
	news = isNews(d.err, err)
	d.err, d.running = err, false
	d.due, d.pause = time.Now().Add(d.pause), min(2*d.pause, longestPause)
	return news
}

// want has the DEL tried soon, because an ADD waits for it.
func (b *backlog) want(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d := b.dels[name]; d != nil {
		if soon := time.Now().Add(firstPause); d.due.After(soon) {
			d.due = soon
		}
	}
	b.hurry() // a shim may have queued it
}

// hurry has the queue read again.
func (b *backlog) hurry() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// failed returns why the queue could not be read the last time, or nil.
func (b *backlog) failed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unread
}

// why returns the problems of the queue, for people.
func (b *backlog) why() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	const most = 8
	var all []error
	for _, name := range slices.Sorted(maps.Keys(b.dels)) {
		if err := b.dels[name].err; err != nil {
			all = append(all, err)
		}
	}
	if more := len(all) - most; more > 0 {
		all = append(all[:most], fmt.Errorf("and %d more have failed", more))
	}
	return errors.Join(slices.Insert(all, 0, b.odd)...)
}
