package thick

import (
	"errors"
	"fmt"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/thick/internal/queue"
)

// mayAdd returns an error if o is an ADD of an attachment whose DEL is queued. To
// the runtime the DEL has succeeded, so it may use the container's ID again; the
// older DEL would then remove the new attachment.
func (sv *service) mayAdd(o *order) error {
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
func (sv *service) stale(o *order, recorded time.Time) (bool, error) {
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
func (sv *service) dequeue(o *order) error {
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
