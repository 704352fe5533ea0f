package lifecycle

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"iter"
	"os"
	"slices"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// An AddRecord describes one ADD of the runtime, for its CHECK, DEL and GC: the interface that
// the runtime asked for, and all others that belong to it.
type AddRecord struct {
	Key              scratch.Key
	State            scratch.State // Partial while one of Attached is being attached, or could not be undone
	Created, Updated time.Time
	Attached         []delegate.Attached

	// Leftovers are what cannot be removed of an Add before. They are removed when
	// Attached is.
	Leftovers []delegate.Attached

	// Sources are the files from which it was adopted, see [Adoption].
	Sources []string

	// Why is the beginning of the error of the last DEL that failed.
	Why string

	// GivenUp says that the last DEL has returned nil although r stays, see [Manager.Del]: the runtime may
	// have let the container go, and whatever else waits for the DEL need not wait any longer.
	GivenUp bool

	// Refused says that r has no attachment: its ADD was refused, see [Manager.Refuse].
	Refused bool

	entries []entry // the form on disk of Attached
	timing  json.RawMessage
}

// Timing says where the time of an operation went: of the last Add, Attach or Reconcile that
// attached something. It leaves out the operation's last write of the record and what came
// after it. It is zero for what was adopted, or if the record does not have it as it should.
func (r AddRecord) Timing() Timing {
	var t Timing
	if json.Unmarshal(r.timing, &t) != nil {
		return Timing{}
	}
	return t
}

// Whole reports whether r.Attached[i] is completely attached. In a Partial record
// some are not. In an AddRecord that was not read but composed, all are if its State is
// [scratch.Added].
func (r AddRecord) Whole(i int) bool {
	return r.State.Attached() && (i >= len(r.entries) || !halfDone(r.entries[i]))
}

// Unfinished reports whether an operation on r was interrupted, or could not do everything, or
// still runs. A [Sweeper] finishes it, unless it runs.
func (r AddRecord) Unfinished() bool {
	return !r.Refused && (!r.State.Attached() || r.State == scratch.Partial)
}

// Records lists the records in Dir. It takes no lock, so that records may change
// while it reads. A record that cannot be read is yielded with its key, if that
// is known, and an error, such as [scratch.ErrCorrupt] or [scratch.ErrVersion].
// The list goes on after it. When ctx ends the list ends, with its error.
func (m *Manager) Records(ctx context.Context) iter.Seq2[AddRecord, error] {
	return func(yield func(AddRecord, error) bool) {
		for r, err := range m.store().List(ctx) {
			if !yield(m.record(r), err) {
				return
			}
		}
	}
}

// Container returns the records of container id. The errors of those that cannot
// be read are joined; the others are returned all the same.
func (m *Manager) Container(ctx context.Context, id string) ([]AddRecord, error) {
	found, err := m.store().Container(ctx, id)
	rs := make([]AddRecord, len(found))
	for i, r := range found {
		rs[i] = m.record(r)
	}
	return rs, err
}

// InNetNS returns the records of the container whose network namespace is at a path, by its
// identity. The errors of those that cannot be read are joined; the others are returned all the
// same.
func (m *Manager) InNetNS(ctx context.Context, path string) (rs []AddRecord, err error) {
	o := m.observe()
	now := o.look(path)
	var errs []error
	for r, err := range m.store().List(ctx) {
		if err != nil {
			errs = append(errs, err)
		} else if slices.ContainsFunc(r.Value.Delegates, func(e entry) bool { return e.NetNS.compare(now, o.boot()) == same }) {
			rs = append(rs, m.record(r))
		}
	}
	return rs, errors.Join(errs...)
}

func (m *Manager) record(r scratch.Record[record]) AddRecord {
	if n := r.Value.Refused; n != nil {
		return AddRecord{Key: r.Key, State: r.State, Created: r.Created, Updated: r.Updated, Refused: true, entries: []entry{{NetNS: *n}}}
	}
	return AddRecord{
		Key: r.Key, State: r.State, Created: r.Created, Updated: r.Updated,
		Attached:  r.Value.attached(r.Key.ContainerID, asRecorded),
		Leftovers: record{Delegates: r.Value.Leftovers}.attached(r.Key.ContainerID, asRecorded),
		Sources:   r.Value.Sources, Why: r.Value.Why, GivenUp: r.Value.GivenUp,
		entries: r.Value.Delegates, timing: r.Value.Timing,
	}
}

// Networks returns the state of the interfaces of r, in the order of r.Attached: for each
// attachment that is [AddRecord.Whole] what [status.Networks] returns, at least one Network.
// An attachment whose result lacks the interface, as those before CNI 0.3 do, has a Network
// with the interface that was asked for. That is all that an attachment has whose result
// is missing or cannot be decoded. A Network without an interface is of an attachment that has
// made none: its result could name one, and has neither an interface nor an address. Default is
// true for one interface of the attachment to r.Key.IfName, if r has that.
//
// name returns the name of a network. Nil means the name in its configuration.
//
// Networks is a pure function of r: whoever reads the record later gets the same. From the
// time when [Transaction].Report runs it is what it will be when Add returns.
func (r AddRecord) Networks(name func(delegate.Attached) string) []status.Network {
	if name == nil {
		name = func(a delegate.Attached) string { return a.Network.Name() }
	}
	var all []status.Network
	for i, a := range r.Attached {
		if !r.Whole(i) {
			continue
		}
		all = append(all, interfaces(a, name(a), a.IfName == r.Key.IfName)...)
	}
	return all
}

// interfaces returns the state of the interfaces of a, at least one.
func interfaces(a delegate.Attached, name string, primary bool) []status.Network {
	networks, made := []status.Network{{Name: name, Default: primary}}, true
	if result, err := a.ParsedResult(); err == nil {
		if read, err := status.NetworksIn(a.NetNS, name, result, primary); err == nil {
			networks, made = read, len(read[0].IPs) > 0 || slices.Contains([]string{"0.1.0", "0.2.0"}, result.Version())
		}
	}
	for i := range networks {
		if made {
			networks[i].Interface = cmp.Or(networks[i].Interface, a.IfName)
		}
	}
	return networks
}

// withRecord calls do with the record of k, see [Manager.lookUp], while op holds the container's
// lock. Without a record it returns nil.
func (m *Manager) withRecord(ctx context.Context, op string, k scratch.Key, do func(context.Context, *scratch.Lock, scratch.Record[record]) error) error {
	if m.nothing(k) {
		return nil
	}
	return m.locked(ctx, op, k, func(ctx context.Context, l *scratch.Lock) error {
		r, err := m.recordOf(ctx, k, m.observe())
		if err != nil {
			return except(err, notThere)
		}
		return do(ctx, l, r)
	})
}

// added returns the record of k, see [Manager.lookUp], if k has been added and nobody has begun
// to remove its own interface.
func (m *Manager) added(ctx context.Context, k scratch.Key, o *observer) (scratch.Record[record], error) {
	r, err := m.recordOf(ctx, k, o)
	own := func(e entry) bool { return e.IfName == k.IfName && halfDone(e) }
	if notThere(err) || err == nil && (!r.State.Attached() || slices.ContainsFunc(r.Value.Delegates, own)) {
		return r, ErrNotAdded
	}
	return r, err
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

// put writes r with new attachments. It waits while GC runs plugins: they may
// remove attachments that GC does not know.
func (m *Manager) put(ctx context.Context, l *scratch.Lock, r scratch.Record[record]) error {
	if r.Created.IsZero() {
		r.Created = time.Now()
	}
	return m.recording(ctx, func() error {
		dir, err := m.lockDir(ctx, false)
		if err != nil {
			return err
		}
		defer unlockDir(dir)
		return m.store().Put(l, r)
	})
}

// note notes r.
func (m *Manager) note(ctx context.Context, l *scratch.Lock, r scratch.Record[record]) error {
	return m.recording(ctx, func() error { return m.store().Note(l, r) })
}

// recording calls write, which writes or deletes a record, as a stage.
func (m *Manager) recording(ctx context.Context, write func() error) error {
	ended := m.begins(ctx, delegate.StageRecord)
	err := write()
	ended(err)
	return err
}

// noteChange notes c, which has been made to r already, and the state of r.
func (m *Manager) noteChange(ctx context.Context, l *scratch.Lock, r scratch.Record[record], c change) error {
	r.Value.noted = &c
	return m.note(ctx, l, r)
}

// forget deletes the record of k.
func (m *Manager) forget(ctx context.Context, l *scratch.Lock, k scratch.Key) error {
	return m.recording(ctx, func() error { return m.store().Delete(l, k) })
}
