package lifecycle

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/inroot"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// A Record is what is known of one attachment of one container, as the runtime
// sees it: the interface it asked for, and all those that came with it.
type Record struct {
	Key              scratch.Key
	State            scratch.State
	Created, Updated time.Time
	Attached         []delegate.Attached

	half   bool    // something of it is half done
	root   string  // in which paths of namespaces are looked at
	places []netns // where its attachments were made
}

// Whole reports whether r has been added and nothing of it is half done.
func (r Record) Whole() bool { return r.State == scratch.Added && !r.half }

// NetNSGone reports whether no attachment of r has the network namespace any
// more that it was made in: there is nothing at its path, or what is there is
// another namespace. Where that cannot be known it is false. It looks at the
// file system each time.
func (r Record) NetNSGone() bool {
	return len(r.places) > 0 && !slices.ContainsFunc(r.places, func(n netns) bool { return !n.gone(r.root) })
}

// Records lists the records in Dir, without a lock: others may change while
// it is read. A damaged record is yielded with its key, as far as that is
// known, and an error, [scratch.ErrCorrupt], until it is forgotten; it does not
// end the list.
func (m *Manager) Records() iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for r, err := range m.store().List(context.TODO()) {
			if !yield(m.record(r), err) {
				return
			}
		}
	}
}

// Container returns what [Manager.Records] lists of container id, at a cost that
// does not depend on how many others there are. Damaged records, and what else
// could not be read, are joined in the error, beside the list.
func (m *Manager) Container(id string) ([]Record, error) {
	found, err := m.store().Container(context.TODO(), id)
	rs := make([]Record, len(found))
	for i, r := range found {
		rs[i] = m.record(r)
	}
	return rs, err
}

func (m *Manager) record(r scratch.Record[record]) Record {
	out := Record{
		Key: r.Key, State: r.State, Created: r.Created, Updated: r.Updated,
		Attached: r.Value.attached(r.Key.ContainerID, asRecorded), half: !r.Value.whole(), root: m.Root,
	}
	for _, e := range r.Value.Delegates {
		out.places = append(out.places, e.NetNS)
	}
	return out
}

// Recover lists the records that are not whole: of attachments that a crash
// or a failure interrupted, and of those that are being worked on. Nothing is
// done about them: Del is for those the runtime gives up, Add undoes those it
// asks for again. Damaged records are joined in the error, beside the list.
func (m *Manager) Recover() ([]Record, error) {
	var broken []Record
	var errs []error
	for r, err := range m.Records() {
		if err != nil {
			errs = append(errs, err)
		} else if !r.Whole() {
			broken = append(broken, r)
		}
	}
	return broken, errors.Join(errs...)
}

// record is the form of a record on disk. It is apart from the types of
// package delegate, so that these can change.
type record struct {
	Delegates []entry `json:"delegates"`
	Missed    int     `json:"missed,omitempty"` // DELs that failed for want of an executable alone
}

type entry struct {
	Network        netconf.Network            `json:"network"`
	NetNS          netns                      `json:"netns,omitzero"`
	IfName         string                     `json:"ifname"`
	Args           string                     `json:"args,omitempty"`
	CapabilityArgs map[string]json.RawMessage `json:"capabilityArgs,omitempty"`
	Result         json.RawMessage            `json:"result,omitempty"`
	Leaving        bool                       `json:"leaving,omitempty"` // undoing it has failed
}

// UnmarshalJSON refuses what no Del could work with: such a record is damaged.
func (r *record) UnmarshalJSON(data []byte) error {
	type plain record
	var p plain
	if err := json.Unmarshal(data, &p); err != nil {
		return err
	}
	if p.Delegates == nil {
		return errors.New("no delegates")
	}
	*r = record(p)
	for i, a := range r.attached("", asRecorded) {
		if err := usable(a); err != nil {
			return fmt.Errorf("delegate %d: %w", i, err)
		}
	}
	return nil
}

// usable refuses what no plugin could be asked to add, nor to delete.
func usable(a delegate.Attached) error {
	if err := utils.ValidateNetworkName(a.Network.Name()); err != nil {
		return err
	}
	if err := utils.ValidateInterfaceName(a.IfName); err != nil {
		return err
	}
	plugins := a.Network.Plugins()
	if len(plugins) == 0 {
		return fmt.Errorf("%w: no plugins", ErrPlan)
	}
	with := netconf.Request{PrevResult: a.Result, CapabilityArgs: a.CapabilityArgs}
	for i := range plugins {
		if _, err := a.Network.Request(i, with); err != nil {
			return err
		}
		with.PrevResult = nil // the same for all, so once is enough
	}
	return nil
}

// keepable refuses what could not be read back as it was written.
func keepable(a delegate.Attachment) error {
	for _, s := range []string{a.IfName, a.NetNS, a.Args} {
		if !utf8.ValidString(s) {
			return fmt.Errorf("%w: %q is not UTF-8", ErrPlan, s)
		}
	}
	return usable(delegate.Attached{Attachment: a})
}

func newRecord(root string, as []delegate.Attached) record {
	r := record{Delegates: make([]entry, len(as))}
	for i, a := range as {
		r.Delegates[i] = entry{
			Network: a.Network, NetNS: identify(root, a.NetNS), IfName: a.IfName,
			Args: a.Args, CapabilityArgs: a.CapabilityArgs, Result: a.Result,
		}
	}
	return r
}

// with returns r with the results of as, its last delegates.
func (r record) with(as []delegate.Attached) record {
	ds := slices.Clone(r.Delegates)
	for i, a := range as {
		ds[len(ds)-len(as)+i].Result = a.Result
	}
	return record{Delegates: ds}
}

// leaving returns r with its last n delegates as what could not be undone.
func (r record) leaving(n int) record {
	ds := slices.Clone(r.Delegates)
	for i := range ds[len(ds)-n:] {
		ds[len(ds)-n+i].Leaving = true
	}
	return record{Delegates: ds}
}

// whole reports whether e has been added, as far as is known.
func (e entry) whole() bool { return e.Result != nil && !e.Leaving }

func (r record) whole() bool {
	return !slices.ContainsFunc(r.Delegates, func(e entry) bool { return !e.whole() })
}

// asRecorded is the namespace as it was at ADD, for [record.attached].
func asRecorded(n netns) string { return n.Path }

// attached returns what r records of the container, in the namespace that
// where makes of the recorded one.
func (r record) attached(containerID string, where func(netns) string) []delegate.Attached {
	as := make([]delegate.Attached, len(r.Delegates))
	for i, e := range r.Delegates {
		as[i] = delegate.Attached{
			Attachment: delegate.Attachment{
				Network: e.Network, ContainerID: containerID, NetNS: where(e.NetNS), IfName: e.IfName,
				Args: e.Args, CapabilityArgs: e.CapabilityArgs,
			},
			Result: e.Result,
		}
	}
	return as
}

// netns is a network namespace: its path, and what tells it from another that
// has come to the same path.
type netns struct {
	Path  string `json:"path,omitempty"`
	Dev   uint64 `json:"dev,omitempty"`
	Inode uint64 `json:"inode,omitempty"`
}

// gone reports whether n is certainly not at its path in root any more.
func (n netns) gone(root string) bool {
	if n.Path == "" {
		return false
	}
	if _, err := os.Stat(cmp.Or(root, "/")); err != nil {
		return false // without a root nothing is there
	}
	err := inroot.With(root, n.Path, func(path string) error { _, err := os.Stat(path); return err })
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	now := identify(root, n.Path)
	return n.Inode != 0 && now.Inode != 0 && (now.Dev != n.Dev || now.Inode != n.Inode)
}

// forDel is the path to hand to a plugin for the DEL of an attachment in n,
// when the runtime's DEL came with path given, or empty where that would be,
// or might be, another container's namespace. Paths are looked at in root.
func (n netns) forDel(root, given string) string {
	if n.Inode == 0 {
		return given // it was never seen, so there is nothing to compare with
	}
	path := given
	if path == "" {
		path = n.Path
	}
	if now := identify(root, path); now.Dev != n.Dev || now.Inode != n.Inode {
		return ""
	}
	return path
}
