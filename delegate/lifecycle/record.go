package lifecycle

import (
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/metacni/metacni/delegate"
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
}

// Whole reports whether r has been added and nothing of it is half done.
func (r Record) Whole() bool {
	return r.State == scratch.Added && len(pending(r.Attached)) == 0
}

// Records lists the records in Dir, without a lock: others may change while
// it is read. A damaged record is yielded as an error, [scratch.ErrCorrupt],
// and does not end the list.
func (m *Manager) Records() iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for r, err := range m.store().List() {
			out := Record{Key: r.Key, State: r.State, Created: r.Created, Updated: r.Updated}
			if err == nil {
				out.Attached = r.Value.attached(r.Key.ContainerID)
			}
			if !yield(out, err) {
				return
			}
		}
	}
}

// Recover lists the records that are not whole: of attachments that a crash
// or a failure interrupted. Nothing is done about them: Del is for those the
// runtime gives up, Add undoes those it asks for again. Damaged records are
// joined in the error, beside the list.
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
}

type entry struct {
	Network        netconf.Network            `json:"network"`
	NetNS          netns                      `json:"netns,omitzero"`
	IfName         string                     `json:"ifname"`
	Args           string                     `json:"args,omitempty"`
	CapabilityArgs map[string]json.RawMessage `json:"capabilityArgs,omitempty"`
	Result         json.RawMessage            `json:"result,omitempty"`
}

func newRecord(as []delegate.Attached) record {
	r := record{Delegates: make([]entry, len(as))}
	for i, a := range as {
		r.Delegates[i] = entry{
			Network: a.Network, NetNS: identify(a.NetNS), IfName: a.IfName,
			Args: a.Args, CapabilityArgs: a.CapabilityArgs, Result: a.Result,
		}
	}
	return r
}

// with returns r with as for its last delegates, whose namespaces are known.
func (r record) with(as []delegate.Attached) record {
	ds := slices.Clone(r.Delegates)
	for i, a := range as {
		ds[len(ds)-len(as)+i].Result = a.Result
	}
	return record{Delegates: ds}
}

// attached returns what r records of the container, in the namespace as it was
// at ADD.
func (r record) attached(containerID string) []delegate.Attached {
	return r.attachedIn(containerID, func(n netns) string { return n.Path })
}

func (r record) attachedIn(containerID string, where func(netns) string) []delegate.Attached {
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

// pending returns the indices of what was to be added and is not known to be.
func pending(as []delegate.Attached) []int {
	var is []int
	for i, a := range as {
		if a.Result == nil {
			is = append(is, i)
		}
	}
	return is
}

// netns is a network namespace: its path, and what tells it from another that
// has come to the same path.
type netns struct {
	Path  string `json:"path,omitempty"`
	Dev   uint64 `json:"dev,omitempty"`
	Inode uint64 `json:"inode,omitempty"`
}

// forDel is the path to hand to a plugin for the DEL of an attachment in n,
// when the runtime's DEL came with path given, or empty where that would be,
// or might be, another container's namespace.
func (n netns) forDel(given string) string {
	if n.Inode == 0 {
		return given // it was never seen, so there is nothing to compare with
	}
	path := given
	if path == "" {
		path = n.Path
	}
	if now := identify(path); now.Dev != n.Dev || now.Inode != n.Inode {
		return ""
	}
	return path
}
