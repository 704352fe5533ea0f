package thick

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
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
	name   string        // of its file
	wanted chan struct{} // has an element when it is to be tried again
	err    error         // of the last attempt
}

// signal puts an element into c unless it has one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// listed takes over what was read from the queue; err says that it could not be
// read. It returns the DELs that are new, and whether odd and err differ from the last
// time.
func (b *backlog) listed(names []string, odd, err error) (found []*queuedDel, news bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unread = err; err == nil {
		for name, d := range b.dels {
			if !slices.Contains(names, name) {
				signal(d.wanted) // it finds that its file has gone
			}
		}
	}
	for _, name := range names {
		if b.dels[name] == nil {
			b.dels[name] = &queuedDel{name: name, wanted: make(chan struct{}, 1)}
			found = append(found, b.dels[name])
		}
	}
	all := errors.Join(odd, err)
	news = isNews(b.odd, all)
	b.odd = all
	return found, news
}

// isNews reports whether err is an error that differs from the last one.
func isNews(last, err error) bool {
	return err != nil && (last == nil || last.Error() != err.Error())
}

// tried notes that an attempt has ended with err, and reports whether err differs
// from that of the last attempt.
func (b *backlog) tried(d *queuedDel, err error) (news bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		delete(b.dels, d.name)
		signal(b.wake) // a shim may have queued it again
	}
	news = isNews(d.err, err)
	d.err = err
	return news
}

// want has the DEL tried soon, because an ADD waits for it.
func (b *backlog) want(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d := b.dels[name]; d != nil {
		signal(d.wanted)
	}
	signal(b.wake) // a shim may have queued it
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
