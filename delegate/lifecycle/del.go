package lifecycle

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/terse"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// A Removal is what Del is asked to do.
type Removal struct {
	Key scratch.Key

	// NetNS is the container's network namespace as the runtime gives it with
	// the DEL. Empty means the recorded one.
	NetNS string
}

// Del removes the attachment as it was recorded, whatever its configuration
// has become. An Add of its key that is running in this Manager is cancelled,
// and waited for.
//
// Every plugin is tried, whatever fails. When one fails the record stays, for
// the next try, and the errors are joined. A plugin whose DEL has succeeded is
// not run again: what it has freed, such as an address, may belong to another
// container by then. An attachment without a record was never made: Del
// returns nil. A damaged record fails with [scratch.ErrCorrupt]. Every error
// is an [*Error].
//
// Run by a plugin of an operation on the same container, Del returns nil if
// nothing was added under the key: it undoes an Add that was refused there.
// Else it fails with [scratch.ErrNested].
//
// A DEL that keeps failing has an end for the runtime, see [Manager.DelTries].
// Where everything is detached, and just a file of [Adoption.Sources] cannot be
// removed, Del returns nil, and the record stays until that is done.
//
// The plugins receive the Removal's or the recorded namespace only as long as
// it is the one that was there at ADD, and else an empty one: the same path may
// have become another container's.
func (m *Manager) Del(ctx context.Context, r Removal) error {
	k := r.Key
	m.supersede(k)
	if m.nothing(k) {
		return nil
	}
	err := m.locked(ctx, k.ContainerID, func(ctx context.Context, l *scratch.Lock) error {
		return m.remove(ctx, l, k, r.NetNS)
	})
	return fail(OpDel, k, m.answer(k, err))
}

// answer returns what Del says when removing k has come to err: nil as well
// where the runtime may let the container go all the same.
func (m *Manager) answer(k scratch.Key, err error) error {
	switch {
	case errors.As(err, new(*givenUpError)), errors.Is(err, scratch.ErrNested) && m.refused(k):
		return nil
	case noRoom(err) && m.unrecorded(k):
		return nil // the lock's file is not there, so nobody is attaching k either
	}
	return err
}

// refused reports whether an ADD of k cannot have got further than to the lock
// that the operation holds inside which it ran: then there is no record, or
// that operation's own, which is not finished.
func (m *Manager) refused(k scratch.Key) bool {
	r, err := m.store().Get(k)
	return errors.Is(err, fs.ErrNotExist) || err == nil && !r.State.Attached()
}

// noRoom reports whether err came about because the file system takes no new
// file: it is full, without inodes, or read-only.
func noRoom(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS)
}

// unrecorded reports whether there is no record of k, damaged or not.
func (m *Manager) unrecorded(k scratch.Key) bool {
	_, err := m.store().Get(k)
	return errors.Is(err, fs.ErrNotExist)
}

// nothing reports whether there cannot be a record of k, nor somebody who is
// about to write it, because there is no Dir: not even a lock has been taken
// there, ever. It is false for what is no key, and when Dir is not set.
func (m *Manager) nothing(k scratch.Key) bool {
	if _, err := os.Lstat(m.Dir); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	return m.unrecorded(k)
}

// remove runs the DELs of what is recorded under k and forgets it.
func (m *Manager) remove(ctx context.Context, l *scratch.Lock, k scratch.Key, given string) error {
	return m.removeAs(ctx, l, k, given, nil)
}

// removeAs is remove that tries what current returns, see detachAs, when what is
// recorded fails.
func (m *Manager) removeAs(ctx context.Context, l *scratch.Lock, k scratch.Key, given string, current func(name string) (netconf.Network, bool)) error {
	return m.store().Consume(ctx, l, k, func(ctx context.Context, r scratch.Record[record]) error {
		if r.State != scratch.Deleting {
			r.State = scratch.Deleting
			_ = m.store().NoteChange(l, r, change{}) // a full disk must not keep a container from going
		}
		err := m.detach(ctx, l, &r, given, func(entry) bool { return true })
		if err != nil && current != nil && m.detachAs(ctx, &r, current) {
			err = nil
		}
		if err == nil {
			err = m.removeSources(r.Value.Sources)
		}
		return m.giveUp(l, r, given, err)
	})
}

// detachAs tries the DELs of what never was attached, and cannot be deleted, with
// the networks as they are configured now, of the same plugins: what was wrong
// with them may be why neither worked. It reports whether nothing of r is left.
func (m *Manager) detachAs(ctx context.Context, r *scratch.Record[record], current func(name string) (netconf.Network, bool)) bool {
	for i, e := range r.Value.Delegates {
		if !e.left() || e.Result != nil || r.Value.Adopted && !e.Half { // what was adopted is attached, without a result as well
			continue
		}
		now, ok := current(e.Network.Name())
		if !ok || kind(now) != kind(e.Network) || now.Equal(e.Network) {
			continue
		}
		a := e.attached(r.Key.ContainerID, func(n netns) string { return n.forDel(m.Root, "") })
		a.Network = now
		if m.invoker().Del(ctx, a) == nil {
			r.Value.Delegates[i].Gone = allOf(e.Network)
		}
	}
	return !slices.ContainsFunc(r.Value.Delegates, entry.left)
}

// detach runs the DELs of the delegates of r for which which is true. It notes
// in r and in its record each plugin that is gone, except the last: then the
// caller removes them all. A record that says added becomes partial with the
// first plugin that is gone.
func (m *Manager) detach(ctx context.Context, l *scratch.Lock, r *scratch.Record[record], given string, which func(entry) bool) error {
	var at []int
	var as []delegate.Attached
	places := make(map[netns]string)
	// Another program may have removed it: it had recorded it, or ours was not in front of its network.
	others := r.Value.Adopted && m.anyMissing(r.Value.Sources) || m.record(*r).NetNSGone()
	for i, e := range r.Value.Delegates {
		if !which(e) {
			continue
		}
		if _, ok := places[e.NetNS]; !ok {
			places[e.NetNS] = e.NetNS.forDel(m.Root, given)
		}
		if others && e.Gone == nil {
			e.Gone = []int{}
		}
		at = append(at, i)
		as = append(as, e.attached(r.Key.ContainerID, func(n netns) string { return places[n] }))
	}
	m.disown(ctx, r.Key, as)
	return m.invoker().DelAll(ctx, as, func(i int, a delegate.Attached) error {
		e := &r.Value.Delegates[at[i]]
		e.Gone = a.Gone
		attached := r.State.Attached()
		if attached {
			r.State, e.Half = scratch.Partial, true
		}
		switch {
		case !slices.ContainsFunc(at, func(i int) bool { return r.Value.Delegates[i].left() }):
		case attached:
			_ = m.store().Note(l, *r) // as above
		default:
			_ = m.store().NoteChange(l, *r, change{At: at[i], Gone: a.Gone})
		}
		return nil
	})
}

// A givenUpError is why the record of a DEL stays although the runtime may let
// the container go.
type givenUpError struct{ error }

func (e *givenUpError) Unwrap() error { return e.error }

// maxWhy is how much of an error is recorded: plugins may be talkative.
const maxWhy = 2 << 10

// giveUp returns err, what removing r came to, after it has counted the failure.
// It returns a givenUpError when it is time for that, and when nothing of
// r is attached any more; given is the namespace that came with the DEL.
func (m *Manager) giveUp(l *scratch.Lock, r scratch.Record[record], given string, err error) error {
	if err == nil {
		return nil
	}
	why := terse.Line(err.Error())
	r.State = scratch.Deleting
	r.Value.Tries++
	r.Value.Why = strings.ToValidUTF8(why[:min(len(why), maxWhy)], "")
	noted := m.store().Note(l, r) // a full disk counts no failures
	if noted == nil && !slices.ContainsFunc(r.Value.Delegates, entry.left) {
		return &givenUpError{err}
	}
	if m.DelTries == 0 || r.Value.Tries < m.DelTries || !m.vanished(r, given) {
		return err
	}
	return &givenUpError{err}
}

// vanished reports whether the container of r has no network namespace any more,
// as far as anybody knows who does not give one with the DEL.
func (m *Manager) vanished(r scratch.Record[record], given string) bool {
	known := slices.ContainsFunc(r.Value.Delegates, func(e entry) bool { return e.NetNS.Path != "" })
	return !known && given == "" || m.record(r).NetNSGone()
}
