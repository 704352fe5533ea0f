package lifecycle

import (
	"context"
	"encoding/json"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/bounds"
	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/scratch"
)

// An Adoption is an attachment that another program has made: a runtime, before
// our plugin was installed, or another meta-plugin.
type Adoption struct {
	// Key is what the attachment is to be recorded under: our network, and
	// the container and interface that the runtime's DEL will name.
	Key scratch.Key

	// Attached are the attached networks in the order of their ADDs, with their
	// results if they are known. The first has Key's interface.
	Attached []delegate.Attached

	// Sources are the files in which the other program has recorded the
	// attachment, as paths in [Manager.Root]. They are removed with the
	// record, so that nobody adopts a second time what has been deleted.
	Sources []string
}

// Adopt records an attachment that another program has made, and reports whether
// it did. Check, Del, GC, Attach and Detach then work as if Add had made it. Adopt
// runs no plugin, and takes the attachment for one that is there. What it finds at the path of a
// network namespace becomes the identity of the namespace: leave out a path that may be another
// container's by now.
//
// Adopt returns false and records nothing if the container has a record with the
// key or with one of the interfaces, and if one of the Sources does not exist any
// more. So it can be repeated, and does not adopt again what Del has removed.
//
// If the container of an adopted attachment is [Dead], and one of its Sources has another result
// than the record, the other program has attached a container of this ID again. Then the record
// is removed without a DEL of what was adopted, which would hit the new attachment, and the
// Sources stay. What was attached later is detached.
//
// It fails with [scratch.ErrCorrupt] if a record of the container is damaged, and
// with [ErrPlan] or a [*netconf.Error] if a Del of the attachment is impossible.
// Every error is an [*Error].
func (m *Manager) Adopt(ctx context.Context, a Adoption) (adopted bool, err error) {
	if _, err := m.store().Get(a.Key); err == nil {
		return false, nil
	}
	err = m.locked(ctx, opAdopt, a.Key, func(ctx context.Context, l *scratch.Lock) error {
		adopted, err = m.adopt(ctx, l, a)
		return err
	})
	return adopted, fail(opAdopt, a.Key, err)
}

// adopt is Adopt with the container's lock held.
func (m *Manager) adopt(ctx context.Context, l *scratch.Lock, a Adoption) (adopted bool, err error) {
	rs, err := m.store().Container(ctx, a.Key.ContainerID)
	if err != nil || slices.ContainsFunc(rs, a.known) || slices.ContainsFunc(a.Sources, m.missing) {
		return false, err
	}
	r, err := m.adoption(a)
	if err == nil {
		err = m.put(ctx, l, r)
	}
	return err == nil, err
}

// known reports whether r has the key or one of the interfaces of a.
func (a Adoption) known(r scratch.Record[record]) bool {
	return r.Key == a.Key || slices.ContainsFunc(r.Value.Delegates, func(e entry) bool {
		return slices.ContainsFunc(a.Attached, func(d delegate.Attached) bool { return d.IfName == e.IfName })
	})
}

// adoption returns the record of a.
func (m *Manager) adoption(a Adoption) (scratch.Record[record], error) {
	r := scratch.Record[record]{Key: a.Key, State: scratch.Added, Value: record{Type: m.Type, Sources: a.Sources, Adopted: true}}
	plan := make([]delegate.Attachment, len(a.Attached))
	for i, d := range a.Attached {
		plan[i] = d.Attachment
	}
	var err error
	if r.Value.Delegates, err = m.planned(a.Key, plan); err != nil {
		return r, err
	}
	for _, path := range a.Sources { // a DEL from a queue may be older than we are, and younger than they are
		if info, err := m.lstat(path); err == nil && info.ModTime().After(r.Created) {
			r.Created = info.ModTime()
		}
	}
	for i, d := range a.Attached {
		if err := usable(d); err != nil {
			return r, err
		}
		r.Value.Delegates[i].Result, r.Value.Delegates[i].Adopted = d.Result, true
	}
	if o := m.observe(); slices.ContainsFunc(r.Value.Delegates, o.connected) { // so the other program's plugins ran here
		r.Value.Host = o.look(ownNetNS)
	}
	return r, nil
}

// Release hands the attachment k over to another program, which then removes it.
// It is the opposite of Adopt:
//
//  1. It detaches everything except the attachment's own interface.
//  2. It removes the files from which the attachment was adopted.
//  3. It calls keep with the rest of the record, to write it down for the other
//     program. The steps of this plugin are not in it: its executable may go.
//  4. It runs the DEL of these steps, removes the Files of the rest, of which the other
//     program does not know, and deletes the record, without a DEL of its own interface.
//
// If the container is [Dead], or an Add or Del was interrupted, Release does not
// call keep, and removes everything as Del does. Without a record it returns nil.
// If a plugin or keep fails, or a file cannot be removed, the record stays, and
// Release can be repeated, keep included. Every error is an [*Error].
//
// Two things are refused before anything is detached: a nil keep, with [ErrPlan], and a
// record with [AddRecord.Leftovers], with code 11. Leftovers cannot be removed while the
// attachment exists, and the other program would not know of them.
func (m *Manager) Release(ctx context.Context, k scratch.Key, keep func(context.Context, AddRecord) error) error {
	if keep == nil {
		return fail(opRelease, k, impossible("there is no function that writes the attachment down for the other program"))
	}
	return fail(opRelease, k, m.withRecord(ctx, opRelease, k, func(ctx context.Context, l *scratch.Lock, r scratch.Record[record]) error {
		k := r.Key
		if !r.State.Attached() || m.observe().judge(r.Value.Delegates).Life == Dead {
			_, err := m.remove(ctx, l, k, errand{})
			return err
		}
		if len(r.Value.Leftovers) > 0 {
			return errLeftovers
		}
		var steps []delegate.Attached
		for _, step := range []func() error{
			func() error {
				return m.drop(ctx, l, &r, errand{which: func(e entry) bool { return halfDone(e) || e.IfName != k.IfName }})
			},
			func() error { return m.removeFiles(r.Value.Sources) },
			func() error {
				rest := r
				rest.Value, steps = r.Value.apart(k.ContainerID)
				return keep(ctx, m.record(rest))
			},
			func() error { return m.invoker().DelAll(ctx, steps) },
			func() error { return m.removeFiles(r.Value.files()) },
			func() error { return m.forget(ctx, l, k) },
		} {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	}))
}

// errLeftovers refuses to release a record that is the only one to know of leftovers.
var errLeftovers = fault.New(types.ErrTryAgainLater, "an earlier ADD has left something that only a DEL of the attachment can remove: delete the container")

// attachedAgain reports whether the program from which r was adopted has attached a container of
// this ID again: one of its files has a result that is not in r.
func (m *Manager) attachedAgain(r scratch.Record[record]) bool {
	return r.Value.Adopted && slices.ContainsFunc(r.Value.Sources, func(path string) bool {
		var source struct {
			NetworkName, IfName string // of an entry of libcni's cache
			Result              any
		}
		var found bool
		if dir, err := durable.OpenDirIn(m.Root, filepath.Dir(path), nil); err == nil {
			text, err := dir.ReadFile(filepath.Base(path), bounds.Record)
			found = err == nil && json.Unmarshal(text, &source) == nil && source.Result != nil
			dir.Close()
		}
		adopted := func(e entry) bool { return e.Network.Name() == source.NetworkName && e.IfName == source.IfName }
		if source.NetworkName != "" && !slices.ContainsFunc(r.Value.Delegates, adopted) {
			return false // it is the entry of the other meta-plugin's network
		}
		return found && !slices.ContainsFunc(r.Value.Delegates, func(e entry) bool {
			var result any
			return json.Unmarshal(e.Result, &result) == nil && reflect.DeepEqual(result, source.Result)
		})
	})
}
