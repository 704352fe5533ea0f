package thick

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/thick/internal/queue"
	"github.com/metacni/metacni/delegate/thick/wire"
)

const (
	listTimeout = 5 * time.Second // for a shim that writes to the queue

	// Pauses between attempts to do a DEL of the queue, and to read the queue.
	firstPause   = time.Second
	longestPause = time.Minute
)

// replay does the DELs of the queue until ctx ends, those in found at first. When those that
// have begun have ended, it lets another daemon read the queue and returns. It reads the
// queue again from time to time, because a shim may fail to connect although the server is
// there.
func (sv *service) replay(ctx context.Context, found []*queuedDel) {
	defer sv.reader.Close()
	var running sync.WaitGroup
	defer running.Wait()
	for {
		for _, d := range found {
			running.Go(func() { sv.finish(ctx, d) })
		}
		wait := longestPause
		if sv.backlog.failed() != nil {
			wait = firstPause
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		case <-sv.backlog.wake:
		}
		found = sv.relist(ctx)
	}
}

// relist reads the queue, if there is one and no other daemon reads it. It returns the DELs
// that are new.
func (sv *service) relist(ctx context.Context) []*queuedDel {
	if sv.Queue == "" {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	names, odd, err := sv.reader.List(limited)
	found, news := sv.backlog.listed(names, odd, err)
	if news && ctx.Err() == nil {
		sv.log(ctx, slog.LevelWarn, "reading queued DELs failed", slog.Any("err", errors.Join(odd, err)))
	}
	return found
}

// finish tries to do a DEL until it is done or ctx ends.
func (sv *service) finish(ctx context.Context, d *queuedDel) {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		leave, err := sv.replays.Enter(ctx)
		if err == nil {
			err = sv.replayOne(ctx, d.name)
			leave()
		}
		news := sv.backlog.tried(d, err)
		if err == nil || ctx.Err() != nil {
			return
		}
		if news {
			sv.log(ctx, slog.LevelWarn, "replaying a queued DEL failed", slog.Any("err", err))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
			continue
		case <-d.wanted:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(firstPause): // however many ADDs wait
		}
	}
}

// replayOne does the DEL in the file name. It does not end with ctx, because a DEL
// that has begun goes on when the server stops. It returns nil when the DEL is
// not queued any more.
func (sv *service) replayOne(ctx context.Context, name string) error {
	q := queue.In(sv.Queue)
	m, err := q.Read(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	op := &operation{
		Event:    Event{Path: wire.PathCNI, UID: -1, Replayed: true, Start: time.Now()},
		recorded: m.Recorded, without: m.Unrecorded, answer: func(reply) error { return nil },
	}
	err = sv.decode(op, &m, nil)
	if err == nil && op.command != delegate.CommandDel {
		err = coded(http.StatusBadRequest, types.ErrInvalidEnvironmentVariables, "%s cannot be queued", op.command)
	}
	if err != nil {
		err = q.SetAside(name, err) // it would always be refused
	} else {
		err = sv.operate(context.WithoutCancel(ctx), op)
	}
	sv.observe(op, err)
	if err != nil {
		return fmt.Errorf("DEL of container %q, interface %q: %w", op.args.ContainerID, op.args.IfName, err)
	}
	return nil
}

// mayAdd returns an error if o is an ADD of an attachment whose DEL is queued. To
// the runtime the DEL has succeeded, so it may use the container's ID again; the
// older DEL would then remove the new attachment.
func (sv *service) mayAdd(o *operation) error {
	if o.command != delegate.CommandAdd || o.entry == "" {
		return nil
	}
	if err := sv.backlog.failed(); errors.Is(err, queue.ErrOther) {
		return unreadable(err) // after any other error Has tells whether the DEL is queued
	}
	queued, err := queue.In(sv.Queue).Has(o.entry)
	if err != nil {
		return unreadable(err)
	}
	if queued {
		sv.backlog.want(o.entry)
		return errQueued
	}
	return nil
}

// stale reports whether o is a DEL of the queue whose attachment is gone: another
// DEL has been done since o was read, or the attachment was recorded later than the
// one that o is about. recorded is when it was recorded, or zero if unknown.
//
// It is checked before the plugin runs. A plugin that uses package lifecycle checks
// it again while it has the lock of the container, because an ADD by another process
// may come between.
func (sv *service) stale(o *operation, recorded time.Time) (bool, error) {
	switch {
	case recorded.IsZero():
	case !o.recorded.IsZero() && !recorded.Equal(o.recorded), !o.without.IsZero() && recorded.After(o.without):
		return true, nil
	}
	queued, err := queue.In(sv.Queue).Has(o.entry)
	return !queued && err == nil, err
}

// dequeue removes the DEL o, which has been done, from the queue, whether it came
// from there or from the runtime.
func (sv *service) dequeue(o *operation) error {
	if o.command != delegate.CommandDel || o.entry == "" {
		return nil
	}
	if err := queue.In(sv.Queue).Remove(o.entry); err != nil {
		return fmt.Errorf("%w: %w", errNotDequeued, err)
	}
	return nil
}

// usable returns why the DELs in the queue are not done, or why shims cannot write to it.
func (sv *service) usable() error {
	if sv.Queue == "" {
		return nil
	}
	if err := sv.backlog.failed(); err != nil {
		return unreadable(err)
	}
	if err := queue.In(sv.Queue).Writable(); err != nil {
		return stopped("no DEL can be queued: "+err.Error(), err)
	}
	return nil
}

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

// wakeUp puts an element into c unless it has one.
func wakeUp(c chan<- struct{}) {
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
				wakeUp(d.wanted) // it finds that its file has gone
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
		wakeUp(b.wake) // a shim may have queued it again
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
		wakeUp(d.wanted)
	}
	wakeUp(b.wake) // a shim may have queued it
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
