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
)

// A backlog has the DELs of the queue that are being done. The files of the queue decide
// which DELs there are.
type backlog struct {
	wake chan struct{} // has an element when the queue is to be read again

	mu     sync.Mutex // guards the following
	tries  map[string]*try
	unread error  // why the queue could not be read the last time, or nil
	odd    string // problems when the queue was last read
}

// A try is a DEL of the queue, from the first attempt to its success.
type try struct {
	name   string
	wanted chan struct{} // has an element when an ADD waits for the DEL
	err    error         // of the last attempt
}

// hurry sends on c, which has room for one element.
func hurry(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// listed takes over what was read from the queue; err says that it could not be
// read. It returns the DELs that have not been tried yet, and reports whether
// odd and err differ from the last time.
func (b *backlog) listed(names []string, odd, err error) (begin []*try, news bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unread = err
	if b.tries == nil {
		b.tries = make(map[string]*try)
	}
	for _, name := range names {
		if b.tries[name] == nil {
			b.tries[name] = &try{name: name, wanted: make(chan struct{}, 1)}
			begin = append(begin, b.tries[name])
		}
	}
	text := ""
	if all := errors.Join(odd, err); all != nil {
		text = all.Error()
	}
	news = text != b.odd && text != ""
	b.odd = text
	return begin, news
}

// failed returns why the queue could not be read the last time, or nil.
func (b *backlog) failed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unread
}

// tried notes that an attempt has ended with err, and reports whether err differs
// from that of the last attempt.
func (b *backlog) tried(t *try, err error) (news bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		delete(b.tries, t.name)
		return false
	}
	if errors.Is(err, queue.ErrDamaged) {
		hurry(b.wake) // to report the damaged file from now on
	}
	news = t.err == nil || t.err.Error() != err.Error()
	t.err = err
	return news
}

// want has the DEL tried soon, because an ADD waits for it.
func (b *backlog) want(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.tries[name]; t != nil {
		hurry(t.wanted)
		return
	}
	hurry(b.wake) // a shim has queued it
}

// rest waits for d, or until ctx ends or sooner has an element, which it reports.
func rest(ctx context.Context, d time.Duration, sooner <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-sooner:
		return true
	}
	return false
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
	for _, name := range slices.Sorted(maps.Keys(b.tries)) {
		if t := b.tries[name]; t.err != nil {
			if failed++; failed <= most {
				all = append(all, t.err)
			}
		}
	}
	if more := failed - most; more > 0 {
		all = append(all, fmt.Errorf("and %d more have failed", more))
	}
	return errors.Join(all...)
}
