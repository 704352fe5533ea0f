package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/bounds"
	"github.com/metacni/metacni/internal/records"
	"github.com/metacni/metacni/internal/terse"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// A Record holds one attachment of one container, as the runtime sees it: the
// interface that the runtime asked for, and all others that belong to it.
type Record struct {
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

	root    string  // the root directory for paths of namespaces
	entries []entry // the form on disk of Attached
}

// Whole reports whether r.Attached[i] is completely attached. In a Partial record
// some are not. In a Record that was not read but composed, all are if its State is
// [scratch.Added].
func (r Record) Whole(i int) bool {
	return r.State.Attached() && (i >= len(r.entries) || !r.entries[i].Half)
}

// NetNSGone reports whether the network namespaces of all attachments of r are
// gone: nothing exists at the path, or another namespace does. It is false if this
// is not certain. It reads the file system each time.
func (r Record) NetNSGone() bool { return r.netnsGone(looking(r.root)) }

// netnsGone is NetNSGone by what look has seen.
func (r Record) netnsGone(look func(path string) netns) bool {
	return len(r.entries) > 0 && !slices.ContainsFunc(r.entries, func(e entry) bool { return !e.NetNS.gone(r.root, look) })
}

// Stale reports whether a [Sweeper] would remove r or a part of it, unless an
// operation on its container is running. It is false for an added record for
// which no network namespace was found at ADD.
func (r Record) Stale() bool { return r.over() != nothing }

// An extent is how much of a record is over, whoever looks at it.
type extent int

const (
	nothing    extent = iota
	halves            // what is half done
	everything        // it is not attached, or its container is gone
)

// over returns how much of r is to be removed.
func (r Record) over() extent {
	switch {
	case !r.State.Attached() || r.outlived():
		return everything
	case r.State == scratch.Partial:
		return halves
	}
	return nothing
}

// outlived reports whether the container had a network namespace that is gone.
func (r Record) outlived() bool {
	return slices.ContainsFunc(r.entries, func(e entry) bool { return e.NetNS.Inode != 0 }) && r.NetNSGone()
}

// Records lists the records in Dir. It takes no lock, so that records may change
// while it reads. A record that cannot be read is yielded with its key, if that
// is known, and an error, such as [scratch.ErrCorrupt] or [scratch.ErrVersion].
// The list goes on after it. When ctx ends the list ends, with its error.
func (m *Manager) Records(ctx context.Context) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for r, err := range m.store().List(ctx) {
			if !yield(m.record(r), err) {
				return
			}
		}
	}
}

// Container returns the records of container id. The errors of those that cannot
// be read are joined; the others are returned all the same.
func (m *Manager) Container(ctx context.Context, id string) ([]Record, error) {
	found, err := m.store().Container(ctx, id)
	rs := make([]Record, len(found))
	for i, r := range found {
		rs[i] = m.record(r)
	}
	return rs, err
}

func (m *Manager) record(r scratch.Record[record]) Record {
	return Record{
		Key: r.Key, State: r.State, Created: r.Created, Updated: r.Updated,
		Attached:  r.Value.attached(r.Key.ContainerID, asRecorded),
		Leftovers: record{Delegates: r.Value.Leftovers}.attached(r.Key.ContainerID, asRecorded),
		Sources:   r.Value.Sources, Why: r.Value.Why,
		root: m.Root, entries: r.Value.Delegates,
	}
}

// record is the form of a record on disk. It does not use the types of package
// delegate, so that these can change.
type record struct {
	Type      string   `json:"type,omitempty"` // see [Manager.Type]
	Delegates []entry  `json:"delegates"`
	Adopted   bool     `json:"adopted,omitempty"` // results may be unknown
	Sources   []string `json:"sources,omitempty"`
	Leftovers []entry  `json:"leftovers,omitempty"` // of an Add before, which cannot be removed
	Tries     int      `json:"tries,omitempty"`
	Why       string   `json:"why,omitempty"`

	noted *change // what has changed since it was written; nil if all of it may have
}

type entry struct {
	Network        netconf.Network            `json:"network"`
	NetNS          netns                      `json:"netns,omitzero"`
	IfName         string                     `json:"ifname"`
	Args           string                     `json:"args,omitempty"`
	CapabilityArgs map[string]json.RawMessage `json:"capabilityArgs,omitempty"`
	Origin         json.RawMessage            `json:"origin,omitempty"`
	Files          []string                   `json:"files,omitempty"`
	Result         json.RawMessage            `json:"result,omitempty"`
	Unfinished     bool                       `json:"unfinished,omitempty"` // Result is not of the last plugin
	Gone           []int                      `json:"gone,omitzero"`        // see [delegate.Attached]; not nil if the plugins may have been told to release
	Adopted        bool                       `json:"adopted,omitempty"`    // attached by another program
	Half           bool                       `json:"half,omitempty"`       // to be removed, in a partial record
	New            bool                       `json:"new,omitempty"`        // never attached, in a record that is not Planned or Leftover
}

// UnmarshalJSON refuses a record with which Del cannot work: it is damaged.
func (r *record) UnmarshalJSON(text []byte) error {
	type plain record
	var read plain
	if err := json.Unmarshal(text, &read); err != nil {
		return err
	}
	if read.Delegates == nil {
		return errors.New("no delegates")
	}
	for _, es := range [][]entry{read.Delegates, read.Leftovers} {
		for i, e := range es {
			if err := usable(e.attached("", asRecorded)); err != nil {
				return fmt.Errorf("delegate %d: %w", i, err)
			}
		}
	}
	*r = record(read)
	return nil
}

// A change is noted in a record after each plugin.
type change struct {
	At         int             `json:"at"` // which delegate
	Result     json.RawMessage `json:"result,omitempty"`
	Unfinished bool            `json:"unfinished,omitempty"`
	Gone       []int           `json:"gone,omitempty"`
}

// Noted implements [records.Changer].
func (r *record) Noted() any {
	if r.noted == nil {
		return nil
	}
	return r.noted
}

// noteChange notes c, which has been made to r already, and the state of r.
func (m *Manager) noteChange(l *scratch.Lock, r scratch.Record[record], c change) error {
	r.Value.noted = &c
	return m.store().Note(l, r)
}

// Make implements [records.Changer].
func (r *record) Make(text records.Change) error {
	var c change
	if err := json.Unmarshal(text, &c); err != nil {
		return err
	}
	if c.At < 0 || c.At >= len(r.Delegates) {
		return fmt.Errorf("no delegate %d of %d", c.At, len(r.Delegates))
	}
	e := r.Delegates[c.At]
	if c.Result != nil {
		e.Result, e.Unfinished = c.Result, c.Unfinished
	}
	if c.Gone != nil {
		e.Gone = c.Gone
	}
	if err := usable(e.attached("", asRecorded)); err != nil {
		return err
	}
	r.Delegates[c.At] = e
	return nil
}

// usable refuses an attachment with which no plugin can be run.
func usable(a delegate.Attached) error {
	if err := utils.ValidateNetworkName(a.Network.Name()); err != nil {
		return err
	}
	if err := utils.ValidateInterfaceName(a.IfName); err != nil {
		return err
	}
	return a.Network.CheckRequest(netconf.Request{PrevResult: a.Result, CapabilityArgs: a.CapabilityArgs})
}

// recordable refuses a plan that cannot be carried out or recorded under k.
func recordable(k scratch.Key, plan []delegate.Attachment) error {
	if len(plan) == 0 {
		return impossible("the plan has no networks")
	}
	size := 0
	for _, p := range plan {
		if p.ContainerID != k.ContainerID {
			return refused(p, impossible("planned for another container, "+terse.ID(p.ContainerID)))
		}
		if err := keepable(p); err != nil {
			return refused(p, err)
		}
		size += p.Network.Size() + len(p.Origin)
		for _, arg := range p.CapabilityArgs {
			size += len(arg)
		}
	}
	if size > bounds.Record { // before it is encoded, which takes several times the memory
		return impossible("the record would be " + bounds.Above(bounds.Record).Error())
	}
	return nil
}

// keepable refuses an attachment that would not be read back as it was written.
func keepable(a delegate.Attachment) error {
	for _, path := range a.Files {
		if !filepath.IsAbs(path) {
			return impossible(fmt.Sprintf("the file %q is not an absolute path", path))
		}
	}
	for _, s := range append([]string{a.IfName, a.NetNS, a.Args}, a.Files...) {
		if !utf8.ValidString(s) {
			return impossible(fmt.Sprintf("%q is not UTF-8", s))
		}
	}
	if err := usable(delegate.Attached{Attachment: a}); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(a.CapabilityArgs)) {
		if err := keepableJSON("capability argument "+strconv.Quote(name), a.CapabilityArgs[name]); err != nil {
			return err
		}
	}
	return keepableJSON("origin", a.Origin)
}

// keepableJSON refuses text, which may be empty, if it is not JSON or is nested too
// deeply.
func keepableJSON(what string, text []byte) error {
	switch {
	case len(text) == 0:
	case !json.Valid(text) || !utf8.Valid(text):
		return impossible("the " + what + " is not JSON")
	case bounds.Deeper(text, bounds.Depth):
		return impossible(fmt.Sprintf("the %s is nested more deeply than %d levels", what, bounds.Depth))
	}
	return nil
}

// entries returns the form on disk of plan, before it is carried out.
func entries(root string, plan []delegate.Attachment) []entry {
	look := looking(root)
	es := make([]entry, len(plan))
	for i, a := range plan {
		es[i] = entry{Network: a.Network, NetNS: look(a.NetNS), IfName: a.IfName, Args: a.Args, CapabilityArgs: a.CapabilityArgs, Origin: a.Origin, Files: a.Files}
	}
	return es
}

// state returns how far e has come in a record whose state is whole: Planned, Added,
// Deleting or, if its plugins may have been told to release what they never completed,
// Leftover.
func (e entry) state(whole scratch.State) scratch.State {
	never := e.New || whole == scratch.Planned || whole == scratch.Leftover
	switch {
	case whole.Attached() && !e.Half:
		return scratch.Added
	case !never:
		return scratch.Deleting
	case e.Gone == nil:
		return scratch.Planned
	}
	return scratch.Leftover
}

// halfDone reports whether e, in a partial record, is to be removed.
func halfDone(e entry) bool { return e.Half }

// left reports whether some plugin of e may have something in the container.
func (e entry) left() bool {
	return len(delegate.Left([]delegate.Attached{e.attached("", asRecorded)})) > 0
}

// over reports whether nothing of e is to be removed any more.
func (e entry) over() bool { return !e.left() && len(e.Files) == 0 }

// distinct returns es without those that are recorded exactly like one before: the same
// DELs remove what both have left. An ADD that is repeated leaves such entries each time.
func distinct(es []entry) []entry {
	seen := make(map[string]bool)
	return slices.DeleteFunc(es, func(e entry) bool {
		text, err := json.Marshal(e)
		again := seen[string(text)]
		seen[string(text)] = true
		return again && err == nil
	})
}

// leaving is the state of r while it is being removed: Leftover if nothing of what is
// left of it was ever attached.
func leaving(r scratch.Record[record]) scratch.State {
	any, ever := false, false
	for _, e := range r.Value.Delegates {
		was := e.state(r.State)
		any = any || e.left()
		ever = ever || e.left() && (was == scratch.Added || was == scratch.Deleting)
	}
	if r.State == scratch.Planned || r.State == scratch.Leftover || any && !ever {
		return scratch.Leftover
	}
	return scratch.Deleting
}

// allOf are the plugins of n, as [delegate.Attached.Gone] has them.
func allOf(n netconf.Network) (plugins []int) {
	for i := range n.Plugins() {
		plugins = append(plugins, i)
	}
	return plugins
}

// files returns those that go with the attachments of r.
func (r record) files() (files []string) {
	for _, e := range r.Delegates {
		files = append(files, e.Files...)
	}
	return files
}

// whole returns the state of r, which is attached: Partial if some delegate is
// half done, and else Added.
func (r record) whole() scratch.State {
	if slices.ContainsFunc(r.Delegates, halfDone) {
		return scratch.Partial
	}
	return scratch.Added
}

// asRecorded returns the path at ADD, for [record.attached].
func asRecorded(n netns) string { return n.Path }

// attached returns the delegates of r. where returns the path of a recorded
// namespace.
func (r record) attached(containerID string, where func(netns) string) []delegate.Attached {
	var as []delegate.Attached
	for _, e := range r.Delegates {
		as = append(as, e.attached(containerID, where))
	}
	return as
}

func (e entry) attached(containerID string, where func(netns) string) delegate.Attached {
	return delegate.Attached{
		Attachment: delegate.Attachment{
			Network: e.Network, ContainerID: containerID, NetNS: where(e.NetNS), IfName: e.IfName,
			Args: e.Args, CapabilityArgs: e.CapabilityArgs, Origin: e.Origin, Files: e.Files,
		},
		Result: e.Result, Added: e.Result != nil && !e.Unfinished, Gone: e.Gone,
	}
}
