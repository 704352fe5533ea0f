package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/containernetworking/cni/pkg/types"

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

	// Adopt, if not nil, finds the attachment in the records of another program. It
	// is called if there is no record of Key. What it returns is recorded, as
	// [Manager.Adopt] does, and then removed. It fails with [fs.ErrNotExist] if there
	// is nothing. With any other error Del fails.
	Adopt func() (Adoption, error)
}

// Del removes an attachment with its recorded configuration, and then its Files and
// its record. It cancels an Add of the same key in this Manager and waits for its
// undo.
//
// If there is no record under the key, Del removes the record of this [Manager.Type] that
// has the same container and interface under another network: the configuration has been
// renamed since. With two such records it fails with code 7. With none, and nothing to
// adopt, it returns nil.
//
// Del runs every plugin, whatever fails, and joins the errors. When one fails the
// record stays, for the next try. A plugin whose DEL has succeeded is not run
// again: what it has freed, such as an address, may belong to another container
// by then. If the record is damaged, Del fails with [scratch.ErrCorrupt]. Every
// error is an [*Error].
//
// Del returns nil in three cases although the record stays:
//
//   - The bound of [Manager.DelTries] is reached.
//   - Everything is detached, and only a file cannot be removed: one of an attachment's
//     Files or of [Adoption.Sources].
//   - The attachment never came about, and its interfaces are not in the network
//     namespace. The record is a [scratch.Leftover], which a [Sweeper] retries.
//
// A plugin may run inside an operation on the same container, and call Del. Del
// then returns nil if nothing is added under the key: it undoes an Add that was
// refused there. Otherwise it fails with [scratch.ErrNested].
//
// The plugins receive the path of the Removal if the namespace of the ADD is there, or
// else the recorded path if it is there. Otherwise they receive none, because the path
// may belong to another container by now.
func (m *Manager) Del(ctx context.Context, r Removal) error {
	k := r.Key
	m.supersede(k)
	if m.nothing(k) && !r.elsewhere() {
		return nil
	}
	err := m.locked(ctx, k.ContainerID, func(ctx context.Context, l *scratch.Lock) error {
		how := &removing{given: r.NetNS}
		if found, err := m.removeRecord(ctx, l, k, how); err != nil || found {
			return err
		}
		recorded, err := m.renamed(ctx, l, k)
		if err != nil {
			return err
		}
		if recorded != k {
			r.Key = recorded // an answer is about the record that there is
			return m.remove(ctx, l, recorded, how)
		}
		if r.Adopt == nil {
			return nil
		}
		a, err := r.Adopt()
		if err != nil {
			return except(err, notThere)
		}
		if adopted, err := m.adopt(ctx, l, a); err != nil || !adopted {
			return err
		}
		return m.remove(ctx, l, k, how)
	})
	return fail(OpDel, k, m.answer(r, err))
}

// elsewhere reports whether another program may have a record of the attachment.
func (r Removal) elsewhere() bool {
	if r.Adopt == nil {
		return false
	}
	_, err := r.Adopt()
	return !errors.Is(err, fs.ErrNotExist)
}

// renamed returns the key of the only record of this plugin that has the container and the
// interface of k, which is not recorded: our network had another name at ADD. Without such
// a record it returns k.
func (m *Manager) renamed(ctx context.Context, l *scratch.Lock, k scratch.Key) (scratch.Key, error) {
	if m.Type == "" {
		return k, nil
	}
	rs, err := m.store().Container(ctx, k.ContainerID)
	ofAnother := func(err error) bool {
		e := (*scratch.Error)(nil)
		return errors.As(err, &e) && e.Key.IfName != k.IfName
	}
	if err := except(err, ofAnother); err != nil {
		return k, err
	}
	found := k
	var names []string
	for _, r := range rs {
		if r.Key.IfName == k.IfName && r.Value.Type == m.Type {
			found = r.Key
			names = append(names, strconv.Quote(r.Key.Network))
		}
	}
	if len(names) > 1 {
		return k, &codedError{types.ErrInvalidNetworkConfig, fmt.Sprintf(
			"network %q has no record of the attachment, and those of networks %s may be meant: repeat the DEL with the name of one", k.Network, strings.Join(names, " and ")), nil}
	}
	return found, nil
}

// answer returns what Del returns when removing r has failed with err. It is nil
// if the runtime may remove the container all the same.
func (m *Manager) answer(r Removal, err error) error {
	switch {
	case errors.Is(err, errStale):
		return nil
	case errors.As(err, new(*givenUpError)), errors.Is(err, scratch.ErrNested) && m.refused(r.Key):
		return nil
	case noRoom(err) && m.unrecorded(r.Key) && !r.elsewhere():
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

// removing says how an attachment is removed. Nil is the same as the zero value. Several
// goroutines may share one.
type removing struct {
	given  string // the namespace that came with the DEL
	others bool   // another program may have removed the attachment already

	// current returns the network of an attachment as it is configured now. It is
	// tried if the recorded one fails, see detachAs.
	current func(delegate.Attachment) (netconf.Network, bool)
}

// remove runs the DELs of what is recorded under k and deletes the record.
func (m *Manager) remove(ctx context.Context, l *scratch.Lock, k scratch.Key, how *removing) error {
	_, err := m.removeRecord(ctx, l, k, how)
	return err
}

// removeRecord is remove, and reports whether there was a record.
func (m *Manager) removeRecord(ctx context.Context, l *scratch.Lock, k scratch.Key, how *removing) (found bool, err error) {
	how = cmp.Or(how, &removing{})
	err = m.store().Consume(ctx, l, k, func(ctx context.Context, r scratch.Record[record]) error {
		found = true
		if err := checkStale(ctx, r.Created); err != nil {
			return err
		}
		if leaving(r) == scratch.Deleting {
			if err := m.removeEach(ctx, l, &r, how); err != nil || len(r.Value.Leftovers) == 0 {
				return m.giveUp(ctx, l, r, how.given, err)
			}
			r.Value.Delegates = nil
		}
		if len(r.Value.Leftovers) > 0 {
			r.Value = record{Type: r.Value.Type, Delegates: append(r.Value.Delegates, r.Value.Leftovers...)}
			noteTold(&r)
			r.Value.Delegates = distinct(r.Value.Delegates)
			r.State = scratch.Leftover
			_ = m.store().Note(l, r)
		}
		err := m.removeEach(ctx, l, &r, how)
		return m.giveUp(ctx, l, r, how.given, err)
	})
	return found, err
}

// removeEach removes the delegates of r with their files.
func (m *Manager) removeEach(ctx context.Context, l *scratch.Lock, r *scratch.Record[record], how *removing) error {
	noteTold(r)
	if state := leaving(*r); state != r.State {
		r.State = state
		_ = m.store().NoteChange(l, *r, change{}) // DEL must work when the disk is full
	}
	which, files := every, r.Value.Sources
	if m.anew(*r) {
		which, files = func(e entry) bool { return !e.Adopted }, nil
	}
	var errs []error
	if r.State == scratch.Leftover {
		// A DEL would remove the interface that another attachment has by now.
		used := m.usedBeside(ctx, l, r.Key)
		which = func(e entry) bool { return !slices.Contains(used, e.IfName) }
		for _, e := range r.Value.Delegates {
			if !e.over() && !which(e) {
				errs = append(errs, fmt.Errorf("the interface %s is another attachment's by now", e.IfName))
			}
		}
	}
	err := m.detach(ctx, l, r, how, which)
	if err != nil && how.current != nil && m.detachAs(ctx, r, how.current, which) {
		err = nil
	}
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	return m.removeFiles(append(filesOf(r.Value.Delegates, every), files...))
}

// usedBeside returns the interfaces that the container of k has by its other records,
// without leftovers.
func (m *Manager) usedBeside(ctx context.Context, l *scratch.Lock, k scratch.Key) (names []string) {
	rs, err := m.store().Container(ctx, k.ContainerID)
	_ = except(err, func(err error) bool { // of a damaged record the key's interface is known
		if e := (*scratch.Error)(nil); errors.As(err, &e) && e.Key != k {
			names = append(names, e.Key.IfName)
		}
		return true
	})
	for _, r := range rs {
		if r.Key == k || r.State == scratch.Leftover {
			continue
		}
		for _, e := range r.Value.Delegates {
			names = append(names, e.IfName)
		}
	}
	return names
}

// noteTold notes in r, which has just been read, which delegates may have been told
// to release something: all but those that are attached. A process that has died in
// a DEL or in an undo may have noted nothing more than that it had begun.
func noteTold(r *scratch.Record[record]) {
	for i, e := range r.Value.Delegates {
		if e.Gone == nil && (e.Half || !r.State.Attached()) {
			r.Value.Delegates[i].Gone = []int{}
		}
	}
}

// detachAs runs DELs with the networks as they are configured now, if they have
// the same plugins. It does so for delegates that never were attached and whose
// DEL fails: a mistake in the recorded configuration may be why. It reports
// whether nothing of r is left.
func (m *Manager) detachAs(ctx context.Context, r *scratch.Record[record], current func(delegate.Attachment) (netconf.Network, bool), which func(entry) bool) bool {
	look := looking(m.Root)
	for i, e := range r.Value.Delegates {
		if !which(e) || !e.left() || e.Result != nil || r.Value.Adopted && !e.Half { // an adopted one is attached, even without a result
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
	return !slices.ContainsFunc(r.Value.Delegates, func(e entry) bool { return which(e) && e.left() })
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
	others := how.others || r.Value.Adopted && m.anyMissing(r.Value.Sources) || m.record(*r).netnsGone(look)
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
	m.disown(ctx, r.Key, as)
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
// givenUpError after [Manager.DelTries] failures, when nothing of r is attached any
// more, and when r never was attached and none of its interfaces is there. given is
// the namespace that came with the DEL.
func (m *Manager) giveUp(ctx context.Context, l *scratch.Lock, r scratch.Record[record], given string, err error) error {
	if err == nil {
		return nil
	}
	why := terse.Line(err.Error())
	r.State = leaving(r)
	r.Value.Tries++
	r.Value.Why = strings.ToValidUTF8(why[:min(len(why), maxWhy)], "")
	noted := m.store().Note(l, r) // when the disk is full the failure is not counted
	if noted == nil && !slices.ContainsFunc(r.Value.Delegates, entry.left) {
		return &givenUpError{err}
	}
	if r.State == scratch.Leftover && !m.there(r, given, m.usedBeside(ctx, l, r.Key)) {
		return &givenUpError{err}
	}
	if m.DelTries == 0 || r.Value.Tries < m.DelTries || !m.vanished(r, given) {
		return err
	}
	return &givenUpError{err}
}

// there reports whether an interface that is left of r may be in the namespace of its
// container. Those of used are other attachments'.
func (m *Manager) there(r scratch.Record[record], given string, used []string) bool {
	look := looking(m.Root)
	return slices.ContainsFunc(r.Value.Delegates, func(e entry) bool {
		if !e.left() || slices.Contains(used, e.IfName) {
			return false
		}
		path := e.NetNS.forDel(look, given)
		if path == "" {
			return false // there is no namespace, or it is another container's
		}
		names, err := m.interfaceNames(path)
		return err != nil || len(names) == 0 || slices.Contains(names, e.IfName) // each has lo
	})
}

// vanished reports whether the container of r has no network namespace any more.
// If none is recorded, it is true when the DEL came without one.
func (m *Manager) vanished(r scratch.Record[record], given string) bool {
	known := slices.ContainsFunc(r.Value.Delegates, func(e entry) bool { return e.NetNS.Path != "" })
	return !known && given == "" || m.record(r).NetNSGone()
}
