package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/internal/terse"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// An errand says what is to be removed of a record, and how. Several goroutines may share
// one.
type errand struct {
	which func(entry) bool // nil: everything, and then the record
	given string           // the namespace that came with the DEL
	dead  bool             // the container is, as the caller knows

	// stale, if not nil, tells by the time when the record was made that it is not the
	// one that was meant.
	stale func(recorded time.Time) (bool, error)

	// current returns the network of an attachment as it is configured now. It is
	// tried if the recorded one fails, see repair.
	current func(delegate.Attachment) (netconf.Network, bool)
}

// remove removes all that is recorded under k, and the record. It reports whether there
// was one.
func (m *Manager) remove(ctx context.Context, l *scratch.Lock, k scratch.Key, e errand) (found bool, err error) {
	deleted := func(error) {}
	err = m.store().Consume(ctx, l, k, func(ctx context.Context, r scratch.Record[record]) error {
		found = true
		if e.stale != nil {
			if is, err := e.stale(r.Created); err != nil || is {
				return cmp.Or(err, errStale)
			}
		}
		w := &walk{errand: e, m: m, lock: l, r: &r}
		err := w.run(ctx)
		if err == nil && len(r.Value.Leftovers) > 0 { // they had to wait: their interfaces may have been these
			r.State, r.Value.Delegates = scratch.Leftover, nil
			err = w.run(ctx)
		}
		if err != nil {
			return w.giveUp(ctx, err)
		}
		deleted = m.begins(ctx, delegate.StageRecord)
		return nil
	})
	deleted(err)
	m.tidyIndex()
	return found, err
}

// drop removes from r the attachments for which e.which is true. The record stays, even
// if nothing is left in it.
func (m *Manager) drop(ctx context.Context, l *scratch.Lock, r *scratch.Record[record], e errand) error {
	if !slices.ContainsFunc(r.Value.Delegates, e.which) {
		return nil
	}
	w := &walk{errand: e, m: m, lock: l, r: r, part: true}
	if err := w.run(ctx); err != nil {
		return err
	}
	r.Value.Delegates = slices.DeleteFunc(r.Value.Delegates, e.which)
	if r.State == scratch.Partial {
		r.State = r.Value.whole()
	}
	return m.note(ctx, l, *r) // lost with the power, it costs one more DEL
}

// errStale means that an attachment is not the one that Del was to remove.
var errStale = errors.New("recorded after the DEL")

// A walk removes attachments of one record. The plugins of an undo run elsewhere, see
// [addition]: then the walk only notes what they have released.
type walk struct {
	errand
	m        *Manager
	lock     *scratch.Lock
	r        *scratch.Record[record]
	part     bool      // the record stays
	undo     bool      // what goes never came about
	verdicts []verdict // on each of the record's delegates
	noted    bool      // the record on disk says what goes
	o        *observer
}

// A verdict says what a walk does about one attachment.
type verdict int

const (
	stays    verdict = iota // it is not to be removed
	goes                    // its plugins release it
	occupied                // its interface is another attachment's by now, and a DEL would remove that
	foreign                 // another program has attached a container of this ID again, and a DEL would remove that
)

// run makes the plugins release what goes, and removes its files. It notes what is done:
// after an error another walk does the rest.
func (w *walk) run(ctx context.Context) error {
	w.begin(ctx)
	var errs []error
	for i, v := range w.verdicts {
		if v == occupied {
			errs = append(errs, fault.New(types.ErrTryAgainLater, fmt.Sprintf("the interface %s is another attachment's by now", w.r.Value.Delegates[i].IfName)))
		}
	}
	err := w.release(ctx)
	if err != nil && w.current != nil && w.repair(ctx) {
		err = nil
	}
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	files := w.files()
	if !w.part && !slices.Contains(w.verdicts, foreign) {
		files = append(files, w.r.Value.Sources...)
	}
	return w.m.removeFiles(files)
}

// begin judges the record, which has just been read, and notes what goes.
func (w *walk) begin(ctx context.Context) {
	v, before := &w.r.Value, w.r.State
	w.o = w.m.observe()
	if w.misled(ctx) {
		w.given = ""
	}
	w.o.given = w.given
	w.dead = w.dead || w.o.judge(v.Delegates).Life == Dead
	if v.Sequential && w.lock.Interrupted() {
		notBegun(v.Delegates, before, w.o.boot())
	}
	told(v.Delegates, before)
	if !w.part {
		w.r.State = leaving(*w.r)
	}
	merge := !w.part && w.r.State == scratch.Leftover && len(v.Leftovers) > 0
	if merge {
		told(v.Leftovers, scratch.Leftover)
		*v = record{Type: v.Type, Delegates: distinct(append(v.Delegates, v.Leftovers...))}
	}
	w.judge(ctx)
	fresh := false // something was attached until now, and the others stay
	for i, e := range v.Delegates {
		fresh = fresh || w.verdicts[i] != stays && w.part && before.Attached() && !halfDone(e)
	}
	w.noted = true
	switch {
	case merge || fresh:
		w.mark(ctx)
	case w.r.State != before:
		_ = w.m.noteChange(ctx, w.lock, *w.r, change{}) // DEL must work when the disk is full
	}
}

// misled reports whether the path that came with the DEL leads to the namespace of another
// container's record. That matters where no identity is recorded: nothing else tells the namespaces apart.
func (w *walk) misled(ctx context.Context) bool {
	if w.given == "" || !slices.ContainsFunc(w.r.Value.Delegates, func(e entry) bool { return e.NetNS.Inode == 0 }) {
		return false
	}
	found, _ := w.m.InNetNS(ctx, w.given) // of what cannot be read nothing is known
	return slices.ContainsFunc(found, func(r AddRecord) bool { return r.Key.ContainerID != w.r.Key.ContainerID })
}

// told notes which of es, in a record of this state, may have been told to release
// something: all but those that are attached. A process that has died may have noted no
// more than that it had begun.
func told(es []entry, of scratch.State) {
	for i, e := range es {
		if e.Gone == nil && e.state(of) != scratch.Added {
			es[i].Gone = []int{}
		}
	}
}

// notBegun notes that the plugins of attachments that were planned, after the first without a
// complete result, have nothing to release: they run one after another, and the process has died
// during the first. That must have been in the boot with this ID, since a loss of power takes the
// last notes.
func notBegun(es []entry, of scratch.State, boot string) {
	before := true // what comes before the first
	for i, e := range es {
		if e.state(of) != scratch.Planned {
			continue
		}
		if !before && e.Result == nil && e.NetNS.in(boot) {
			es[i].Gone = allOf(e.Network)
		}
		before = before && e.Result != nil && !e.Unfinished
	}
}

// judge says what becomes of each attachment. All who remove something ask here.
func (w *walk) judge(ctx context.Context) {
	r := *w.r
	unattached := func(e entry) bool { // its interface name may have been given away
		state := e.state(r.State)
		return state == scratch.Planned || state == scratch.Leftover
	}
	var used []string
	if slices.ContainsFunc(r.Value.Delegates, unattached) {
		used = w.m.usedBeside(ctx, r.Key)
	}
	again := w.dead && w.m.attachedAgain(r)
	w.verdicts = make([]verdict, len(r.Value.Delegates))
	for i, e := range r.Value.Delegates {
		switch {
		case w.which != nil && !w.which(e):
		case unattached(e) && slices.Contains(used, e.IfName) && !e.over():
			w.verdicts[i] = occupied
		case again && e.Adopted:
			w.verdicts[i] = foreign
		default:
			w.verdicts[i] = goes
		}
	}
}

// left reports whether some plugin may have something of the i'th attachment, which goes.
func (w *walk) left(i int) bool {
	return w.verdicts[i] == goes && w.r.Value.Delegates[i].left()
}

// anyLeft reports whether left is true for any.
func (w *walk) anyLeft() bool {
	for i := range w.verdicts {
		if w.left(i) {
			return true
		}
	}
	return false
}

// files returns those that go with the attachments.
func (w *walk) files() (files []string) {
	for i, e := range w.r.Value.Delegates {
		if w.verdicts[i] != stays {
			files = append(files, e.Files...)
		}
	}
	return files
}

// mark notes the whole record with what goes: what a plugin has begun to remove is not
// attached any more. It ignores errors: plugins must run when the disk is full.
func (w *walk) mark(ctx context.Context) {
	switch {
	case w.part && w.r.State.Attached():
		w.r.State = scratch.Partial
		for i, v := range w.verdicts {
			if e := &w.r.Value.Delegates[i]; v != stays && !halfDone(*e) {
				if e.State = scratch.Deleting; w.undo {
					e.State = scratch.Planned
				}
			}
		}
	case w.undo:
		w.r.State = scratch.Leftover
	}
	w.noted = w.m.note(ctx, w.lock, *w.r) == nil
}

// gone notes which plugins of the i'th attachment have released it. If nothing is left of
// what goes it writes nothing, because the record is written or removed next.
func (w *walk) gone(ctx context.Context, i int, plugins []int) {
	w.r.Value.Delegates[i].Gone = plugins
	switch {
	case !w.anyLeft():
	case w.noted: // all of a large record for each of its plugins would take long
		_ = w.m.noteChange(ctx, w.lock, *w.r, change{At: i, Gone: plugins})
	default:
		w.mark(ctx)
	}
}

// release runs the DELs of what goes.
func (w *walk) release(ctx context.Context) error {
	var at []int
	var as []delegate.Attached
	var ours []owned
	for i, e := range w.r.Value.Delegates {
		if w.verdicts[i] == goes {
			ours = append(ours, ownedBy(e.Network, e.Result)...)
		}
	}
	others, err := w.m.lookBeside(ctx, w.r.Key, ours)
	if err != nil {
		return err
	}
	swapped := w.swapped(ctx, others)
	for i, e := range w.r.Value.Delegates {
		if w.verdicts[i] == goes {
			where := w.o.forPlugin
			if swapped[i] {
				where = func(netns) string { return "" }
			}
			at = append(at, i)
			as = append(as, e.attached(w.r.Key.ContainerID, where))
		}
	}
	others.disown(as)
	err = w.m.timed(ctx).DelAll(ctx, as, func(i int, a delegate.Attached) error {
		w.gone(ctx, at[i], a.Gone)
		return nil
	})
	w.removeSwapped(swapped)
	return err
}

// repair runs DELs with the networks as they are configured now, if they have the same
// plugins. It does so for delegates that never were attached and whose DEL fails: a
// mistake in the recorded configuration may be why. It reports whether nothing is left.
func (w *walk) repair(ctx context.Context) bool {
	for i, e := range w.r.Value.Delegates {
		if !w.left(i) || e.Result != nil || w.r.Value.Adopted && !halfDone(e) { // an adopted one is attached, even without a result
			continue
		}
		a := e.attached(w.r.Key.ContainerID, w.o.forPlugin)
		now, ok := w.current(a.Attachment)
		if !ok || !sameKind(now, e.Network) || now.Equal(e.Network) {
			continue
		}
		a.Network = now
		if w.m.timed(ctx).Del(ctx, a) == nil {
			w.r.Value.Delegates[i].Gone = allOf(e.Network)
		}
	}
	return !w.anyLeft()
}

// usedBeside returns the interfaces that the container of k has by its other records,
// without leftovers.
func (m *Manager) usedBeside(ctx context.Context, k scratch.Key) (names []string) {
	rs, err := m.store().Container(ctx, k.ContainerID)
	_ = except(err, func(err error) bool { // of a damaged record the key's interface is known
		if e := (*scratch.Error)(nil); errors.As(err, &e) && e.Key != k {
			names = append(names, e.Key.IfName)
		}
		return true
	})
	rs = slices.DeleteFunc(rs, func(r scratch.Record[record]) bool { return r.Key == k })
	return append(names, recordedNames(rs)...)
}

// recordedNames returns the interfaces in rs. Those of a leftover that are there are in the namespace.
func recordedNames(rs []scratch.Record[record]) (names []string) {
	for _, r := range rs {
		for _, e := range r.Value.Delegates {
			if r.State != scratch.Leftover {
				names = append(names, e.IfName)
			}
		}
	}
	return names
}

// A givenUpError is why the record of a DEL stays although the runtime may let
// the container go.
type givenUpError struct{ error }

func (e *givenUpError) Unwrap() error { return e.error }

// maxWhy bounds how many bytes of an error are recorded.
const maxWhy = 2 << 10

// giveUp counts the failure err to remove the record and returns err. It returns a
// givenUpError when nothing is attached any more, and after [Manager.DelTries] failures if
// the interfaces that are left are absent. It also does when nothing ever was attached, none of the interfaces
// is there, and every plugin was tried: the walk was not interrupted, or too often.
func (w *walk) giveUp(ctx context.Context, err error) error {
	r, m := w.r, w.m
	why := terse.Line(err.Error())
	r.State = leaving(*r)
	r.Value.Tries++
	r.Value.Why = strings.ToValidUTF8(why[:min(len(why), maxWhy)], "")
	spent := m.DelTries > 0 && r.Value.Tries >= m.DelTries
	released, absent := true, true
	var visible []string
	for _, e := range r.Value.Delegates {
		if e.left() {
			seen, gone := w.find(e)
			released, absent = false, absent && gone
			if seen {
				visible = append(visible, e.IfName)
			}
		}
	}
	givesUp := r.State == scratch.Leftover && (spent || ctx.Err() == nil) && w.ofOthers(ctx, visible) || spent && absent
	r.Value.GivenUp = released || givesUp
	noted := m.note(ctx, w.lock, *r) // when the disk is full the failure is not counted
	switch {
	case givesUp, released && noted == nil:
		return &givenUpError{err}
	case absent && m.DelTries > 0:
		return fmt.Errorf("%w (%w)", err, ErrAbsent)
	}
	return err
}

// ofOthers reports whether all interfaces are other attachments'.
func (w *walk) ofOthers(ctx context.Context, names []string) bool {
	used := w.m.usedBeside(ctx, w.r.Key)
	return !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(used, name) })
}

// find reports whether the interface of e may be visible in the namespace of the container, and whether it
// is absent: no known path leads to the namespace, or the namespace does not have it. If no namespace
// is recorded, the interface is absent when the DEL came without one, or with a path at which there
// is none.
func (w *walk) find(e entry) (visible, absent bool) {
	has := func(path string) bool {
		names, err := w.m.interfaceNames(path)
		return err != nil || len(names) == 0 || slices.Contains(names, e.IfName) // each has lo
	}
	path, plugins := w.o.path(e.NetNS), w.o.forPlugin(e.NetNS) // "" for the host's, or another container's
	visible = plugins != "" && has(plugins)
	switch path {
	case "":
		path = cmp.Or(w.given, e.NetNS.Path)
		return visible, e.NetNS.Inode != 0 || path == "" || w.o.m.occupied(w.m.Root, path) || errors.Is(there(w.m.Root, path), fs.ErrNotExist)
	case plugins:
		return visible, !visible
	}
	return visible, !has(path)
}
