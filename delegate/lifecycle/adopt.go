package lifecycle

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/inroot"
	"github.com/metacni/metacni/scratch"
)

// An Adoption is an attachment that another program has made: a runtime with the
// network that ours has come to stand in front of, or another meta-plugin.
type Adoption struct {
	// Key is what the attachment is to be recorded under: our network, and
	// the container and interface that the runtime's DEL will name.
	Key scratch.Key

	// Attached is what is attached, in the order in which it was, with the
	// results as far as they are known. The first has Key's interface.
	Attached []delegate.Attached

	// Gone says that the container is known to be gone, although there may be
	// something at the path of its network namespace. A namespace that is
	// certainly gone is found without it.
	Gone bool

	// Sources are the files in which the other program has recorded the
	// attachment, as paths in [Manager.Root]. They are removed with the
	// record, so that nobody adopts a second time what has been deleted.
	Sources []string
}

// Adopt records an attachment that another program has made, and reports whether
// it did: CHECK, Del, GC, Attach and Detach then work as if Add had made it. No
// plugin is run. The attachment of a container that is gone is recorded as
// [scratch.Deleting], for a [Sweeper], GC or Del to remove what it has left.
//
// Adopt does nothing and returns false where a record has the key or one of the
// interfaces, and where one of the Sources is not there any more: so it may be
// repeated, and what Del has removed stays removed. A damaged record of the
// container is [scratch.ErrCorrupt], and an attachment that could not be deleted
// by what is known of it [ErrPlan] or a [*netconf.Error]. Every error is an
// [*Error]; nothing has been recorded then.
func (m *Manager) Adopt(ctx context.Context, a Adoption) (adopted bool, err error) {
	if _, err := m.store().Get(a.Key); err == nil {
		return false, nil
	}
	err = m.locked(ctx, a.Key.ContainerID, func(_ context.Context, l *scratch.Lock) error {
		rs, err := m.store().Records(ctx, l)
		if err != nil || slices.ContainsFunc(rs, a.known) || m.anyMissing(a.Sources) {
			return err
		}
		r, err := m.adoption(a)
		if err == nil {
			err = m.put(ctx, l, r)
		}
		adopted = err == nil
		return err
	})
	return adopted, fail(OpAdopt, a.Key, err)
}

// known reports whether r is a record of a, or of one of its interfaces.
func (a Adoption) known(r scratch.Record[record]) bool {
	return r.Key == a.Key || slices.ContainsFunc(r.Value.Delegates, func(e entry) bool {
		return slices.ContainsFunc(a.Attached, func(d delegate.Attached) bool { return d.IfName == e.IfName })
	})
}

// adoption is the record to make of a.
func (m *Manager) adoption(a Adoption) (scratch.Record[record], error) {
	r := scratch.Record[record]{Key: a.Key, State: scratch.Added, Value: record{Sources: a.Sources, Adopted: true}}
	plan := make([]delegate.Attachment, len(a.Attached))
	for i, d := range a.Attached {
		plan[i] = d.Attachment
	}
	if err := recordable(a.Key, plan); err != nil {
		return r, err
	}
	r.Value.Delegates = entries(m.Root, plan)
	for i, d := range a.Attached {
		if err := usable(d); err != nil {
			return r, err
		}
		r.Value.Delegates[i].Result = d.Result
	}
	there := slices.ContainsFunc(a.Attached, func(d delegate.Attached) bool { return !nothingAt(m.Root, d.NetNS) })
	if a.Gone || !there {
		r.State = scratch.Deleting
		for i := range r.Value.Delegates {
			r.Value.Delegates[i].Gone = []int{} // the other program may have begun to
		}
	}
	return r, nil
}

// Release gives the attachment k back, for another program to remove: what
// belongs to it beside its own interface is detached, keep is told what is left
// and writes it down for the other program, and the record is removed without
// a DEL of what is left. It is what Adopt is the opposite of.
//
// What is not attached, because its container is gone or an Add or a Del has
// been interrupted, cannot be given back: it is removed, as Del does it, and
// keep is not called. Without a record Release returns nil. When a plugin or
// keep fails the record stays, so that Release can be repeated, and so can
// keep. The files that the attachment was adopted from are removed before keep
// is called. Every error is an [*Error].
func (m *Manager) Release(ctx context.Context, k scratch.Key, keep func(context.Context, Record) error) error {
	return fail(OpRelease, k, m.withRecord(ctx, k, func(ctx context.Context, l *scratch.Lock, r scratch.Record[record]) error {
		if !r.State.Attached() || m.record(r).outlived() {
			return m.remove(ctx, l, k, "")
		}
		err := m.drop(ctx, l, &r, func(e entry) bool { return e.Half || e.IfName != k.IfName })
		if err == nil {
			err = m.removeSources(r.Value.Sources)
		}
		if err == nil {
			err = keep(ctx, m.record(r))
		}
		if err == nil {
			err = m.store().Delete(l, k)
		}
		return err
	}))
}

// put records r, which is new. It waits while GC tells plugins what is attached,
// for what they are not told of they may remove.
func (m *Manager) put(ctx context.Context, l *scratch.Lock, r scratch.Record[record]) error {
	if r.Created.IsZero() {
		r.Created = time.Now()
	}
	unlock, err := m.lockDir(ctx, false)
	if err != nil {
		return err
	}
	defer unlock() //nolint:errcheck // the lock ends with the process at the latest
	return m.store().Put(l, r)
}

func (m *Manager) anyMissing(sources []string) bool {
	return slices.ContainsFunc(sources, func(path string) bool {
		return m.inDir(path, func(path string) error { _, err := os.Lstat(path); return err }) != nil
	})
}

// removeSources removes files of other programs. Those that are not there are
// removed already.
func (m *Manager) removeSources(sources []string) error {
	var errs []error
	for _, path := range sources {
		if err := m.inDir(path, os.Remove); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// inDir calls do with a path to the file at path in Root. A link there is not
// followed by opening its directory alone.
func (m *Manager) inDir(path string, do func(path string) error) error {
	return inroot.With(m.Root, filepath.Dir(path), func(dir string) error {
		return do(filepath.Join(dir, filepath.Base(path)))
	})
}
