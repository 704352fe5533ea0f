package lifecycle

import (
	"cmp"
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

// A Removal says what Del removes.
type Removal struct {
	Key scratch.Key

	// NetNS is the path of the container's network namespace, as the runtime
	// passes it with the DEL. Empty means the recorded one.
	NetNS string
}

// Del removes an attachment with its recorded configuration, and then its Files and
// its record. It cancels an Add of the same key in this Manager and waits for its
// undo. If there is no record, Del returns nil.
//
// Del runs every plugin, whatever fails, and joins the errors. When one fails the
// record stays, for the next try. A plugin whose DEL has succeeded is not run
// again: what it has freed, such as an address, may belong to another container
// by then. If the record is damaged, Del fails with [scratch.ErrCorrupt]. Every
// error is an [*Error].
//
// Del returns nil in two cases although the record stays. One is the bound of
// [Manager.DelTries]. In the other everything is detached, and only a file cannot be
// removed: one of an attachment's Files or of [Adoption.Sources].
//
// A plugin may run inside an operation on the same container, and call Del. Del
// then returns nil if nothing is added under the key: it undoes an Add that was
// refused there. Otherwise it fails with [scratch.ErrNested].
//
// The plugins receive the namespace of the Removal, or the recorded one, if it is
// still the namespace of the ADD. Otherwise they receive none, because the path
// may belong to another container by now.
func (m *Manager) Del(ctx context.Context, r Removal) error {
	k := r.Key
	m.supersede(k)
	if m.nothing(k) {
		return nil
	}
	err := m.locked(ctx, k.ContainerID, func(ctx context.Context, l *scratch.Lock) error {
		return m.remove(ctx, l, k, &removing{given: r.NetNS})
	})
	return fail(OpDel, k, m.answer(k, err))
}

// answer returns what Del returns when removing k has failed with err. It is nil
// if the runtime may remove the container all the same.
func (m *Manager) answer(k scratch.Key, err error) error {
	switch {
	case errors.As(err, new(*givenUpError)), errors.Is(err, scratch.ErrNested) && m.refused(k):
		return nil
	case noRoom(err) && m.unrecorded(k):
		return nil // without the lock's file nobody is attaching k either
	}
	return err
}

// refused reports whether an ADD of k, inside an operation that holds the lock,
// cannot have done anything. Then there is no record, or that of the operation,
// which is not finished.
func (m *Manager) refused(k scratch.Key) bool {
	r, err := m.store().Get(k)
	return errors.Is(err, fs.ErrNotExist) || err == nil && !r.State.Attached()
}

// noRoom reports whether the cause of err is a file system that takes no new
// file: it is full, has no inodes left, or is read-only.
func noRoom(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS)
}

// unrecorded reports whether there is no record of k, damaged or not.
func (m *Manager) unrecorded(k scratch.Key) bool {
	_, err := m.store().Get(k)
	return errors.Is(err, fs.ErrNotExist)
}

// nothing reports whether Dir does not exist. Then there is no record of k, and
// nobody is about to write one, because even taking a lock creates Dir. It is
// false for an invalid key and when Dir is not set.
func (m *Manager) nothing(k scratch.Key) bool {
	if _, err := os.Lstat(m.Dir); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	return m.unrecorded(k)
}

// removing says how an attachment is removed. Nil is the same as the zero value.
type removing struct {
	given string // the namespace that came with the DEL

	// current returns the network of an attachment as it is configured now. It is
	// tried if the recorded one fails, see detachAs.
	current func(delegate.Attachment) (netconf.Network, bool)

	owners *owners // if there are several to remove
}

// remove runs the DELs of what is recorded under k and deletes the record.
func (m *Manager) remove(ctx context.Context, l *scratch.Lock, k scratch.Key, how *removing) error {
	how = cmp.Or(how, &removing{})
	return m.store().Consume(ctx, l, k, func(ctx context.Context, r scratch.Record[record]) error {
		if r.State != scratch.Deleting {
			r.State = scratch.Deleting
			_ = m.store().NoteChange(l, r, change{}) // DEL must work when the disk is full
		}
		which, files := every, r.Value.Sources
		if m.anew(r) {
			which, files = func(e entry) bool { return !e.Adopted }, nil
		}
		err := m.detach(ctx, l, &r, how, which)
		if err != nil && how.current != nil && m.detachAs(ctx, &r, how.current) {
			err = nil
		}
		if err == nil {
			err = m.removeFiles(append(filesOf(r.Value.Delegates, every), files...))
		}
		return m.giveUp(l, r, how.given, err)
	})
}

// detachAs runs DELs with the networks as they are configured now, if they have
// the same plugins. It does so for delegates that never were attached and whose
// DEL fails: a mistake in the recorded configuration may be why. It reports
// whether nothing of r is left.
func (m *Manager) detachAs(ctx context.Context, r *scratch.Record[record], current func(delegate.Attachment) (netconf.Network, bool)) bool {
	look := looking(m.Root)
	for i, e := range r.Value.Delegates {
		if !e.left() || e.Result != nil || r.Value.Adopted && !e.Half { // an adopted one is attached, even without a result
			continue
		}
		a := e.attached(r.Key.ContainerID, func(n netns) string { return n.forDel(look, "") })
		now, ok := current(a.Attachment)
		if !ok || kind(now) != kind(e.Network) || now.Equal(e.Network) {
			continue
		}
		a.Network = now
		if m.invoker().Del(ctx, a) == nil {
			r.Value.Delegates[i].Gone = allOf(e.Network)
		}
	}
	return !slices.ContainsFunc(r.Value.Delegates, entry.left)
}

// detach runs the DELs of the delegates of r for which which is true. It notes in
// r and on disk each plugin that is gone. The last it notes in r only, because the
// caller removes all these delegates.
func (m *Manager) detach(ctx context.Context, l *scratch.Lock, r *scratch.Record[record], how *removing, which func(entry) bool) error {
	how = cmp.Or(how, &removing{})
	var at []int
	var as []delegate.Attached
	look := looking(m.Root)
	// Another program may have removed it: one that had recorded it, or the
	// runtime while our plugin was not installed.
	others := r.Value.Adopted && m.anyMissing(r.Value.Sources) || m.record(*r).netnsGone(look)
	for i, e := range r.Value.Delegates {
		if !which(e) {
			continue
		}
		if others && e.Gone == nil {
			e.Gone = []int{}
		}
		at = append(at, i)
		as = append(as, e.attached(r.Key.ContainerID, func(n netns) string { return n.forDel(look, how.given) }))
	}
	cmp.Or(how.owners, m.ownersOf(false)).disown(ctx, r.Key, as)
	return m.invoker().DelAll(ctx, as, func(i int, a delegate.Attached) error {
		r.Value.Delegates[at[i]].Gone = a.Gone
		switch {
		case !slices.ContainsFunc(at, func(i int) bool { return r.Value.Delegates[i].left() }):
		case r.State.Attached():
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

// maxWhy bounds how many bytes of an error are recorded.
const maxWhy = 2 << 10

// giveUp counts the failure err of removing r and returns err. It returns a
// givenUpError after [Manager.DelTries] failures, and when nothing of r is
// attached any more. given is the namespace that came with the DEL.
func (m *Manager) giveUp(l *scratch.Lock, r scratch.Record[record], given string, err error) error {
	if err == nil {
		return nil
	}
	why := terse.Line(err.Error())
	r.State = scratch.Deleting
	r.Value.Tries++
	r.Value.Why = strings.ToValidUTF8(why[:min(len(why), maxWhy)], "")
	noted := m.store().Note(l, r) // when the disk is full the failure is not counted
	if noted == nil && !slices.ContainsFunc(r.Value.Delegates, entry.left) {
		return &givenUpError{err}
	}
	if m.DelTries == 0 || r.Value.Tries < m.DelTries || !m.vanished(r, given) {
		return err
	}
	return &givenUpError{err}
}

// vanished reports whether the container of r has no network namespace any more.
// If none is recorded, it is true when the DEL came without one.
func (m *Manager) vanished(r scratch.Record[record], given string) bool {
	known := slices.ContainsFunc(r.Value.Delegates, func(e entry) bool { return e.NetNS.Path != "" })
	return !known && given == "" || m.record(r).NetNSGone()
}
