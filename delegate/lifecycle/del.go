package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/scratch"
)

// Del removes the attachment k as it was recorded, whatever its configuration
// has become. An Add of k that is running in this Manager is cancelled, and
// waited for.
//
// Every plugin is tried, whatever fails. When one fails the record stays, for
// the next try, and the errors are joined. An attachment without a record was
// never made: Del returns nil. A damaged record fails with
// [scratch.ErrCorrupt]. Every error is an [*Error].
//
// Run by a plugin of an operation on the same container, Del returns nil if
// nothing was added under k: it undoes an Add that was refused there. Else it
// fails with [scratch.ErrNested].
//
// A plugin whose executable is not found fails like any other, until it has
// been missed often enough; see [Manager.SkipMissing].
//
// The plugins receive netns, or the recorded namespace when netns is empty;
// but only as long as it is the namespace that was there at ADD, and else an
// empty one: the same path may have become another container's.
func (m *Manager) Del(ctx context.Context, k scratch.Key, netns string) error {
	m.supersede(k)
	if m.nothing(k) {
		return nil
	}
	err := m.locked(ctx, k.ContainerID, func(ctx context.Context, l *scratch.Lock) error {
		return m.remove(ctx, l, k, netns)
	})
	if errors.Is(err, errSkipped) || errors.Is(err, scratch.ErrNested) && m.refused(k) {
		return nil
	}
	return fail("DEL", k, err)
}

// refused reports whether an ADD of k cannot have got further than to the lock
// that the operation holds inside which it ran: then there is no record, or
// that operation's own, which is not finished.
func (m *Manager) refused(k scratch.Key) bool {
	r, err := m.store().Get(k)
	return errors.Is(err, fs.ErrNotExist) || err == nil && r.State != scratch.Added
}

// nothing reports whether there cannot be a record of k, nor somebody who is
// about to write it, because there is no Dir: not even a lock has been taken
// there, ever. It is false for what is no key, and when Dir is not set.
func (m *Manager) nothing(k scratch.Key) bool {
	if _, err := os.Lstat(m.Dir); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	_, err := m.store().Get(k)
	return errors.Is(err, fs.ErrNotExist)
}

// remove runs the DELs of what is recorded under k and forgets it.
func (m *Manager) remove(ctx context.Context, l *scratch.Lock, k scratch.Key, given string) error {
	return m.store().Consume(ctx, l, k, func(ctx context.Context, r scratch.Record[record]) error {
		if r.State != scratch.Deleting {
			r.State = scratch.Deleting
			_ = m.store().Note(l, r) // a full disk must not keep a container from going
		}
		err := m.invoker().DelAll(ctx, r.Value.attached(k.ContainerID, func(n netns) string { return n.forDel(m.Root, given) }))
		return m.skip(l, r, err)
	})
}

// errSkipped is why the record of a DEL stays that has nothing to do any more
// but to run plugins that were not found too often.
var errSkipped = errors.New("plugin skipped")

// skip returns err, what removing r came to, or errSkipped in its place when it
// is time for that.
func (m *Manager) skip(l *scratch.Lock, r scratch.Record[record], err error) error {
	if err == nil || m.SkipMissing == 0 || !onlyMissing(err) {
		return err
	}
	r.State = scratch.Deleting
	r.Value.Missed++
	if noteErr := m.store().Note(l, r); noteErr != nil {
		return errors.Join(err, noteErr)
	}
	if r.Value.Missed < m.SkipMissing {
		return err
	}
	return fmt.Errorf("%w after %d tries: %w", errSkipped, r.Value.Missed, err)
}

// onlyMissing reports whether all that err joins is plugins that were not
// found.
func onlyMissing(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(), func(e error) bool { return !onlyMissing(e) })
	}
	var failed *delegate.Error
	return errors.As(err, &failed) && errors.Is(failed.Err, delegate.ErrPluginNotFound)
}
