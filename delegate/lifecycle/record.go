package lifecycle

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/bounds"
	"github.com/metacni/metacni/internal/rawjson"
	"github.com/metacni/metacni/internal/records"
	"github.com/metacni/metacni/internal/terse"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// record is the form of a record on disk. It does not use the types of package
// delegate, so that these can change.
type record struct {
	Type      string          `json:"type,omitempty"` // see [Manager.Type]
	Delegates []entry         `json:"delegates"`
	Adopted   bool            `json:"adopted,omitempty"` // results may be unknown
	Sources   []string        `json:"sources,omitempty"`
	Leftovers []entry         `json:"leftovers,omitempty"` // of an Add before, which cannot be removed
	Tries     int             `json:"tries,omitempty"`
	Why       string          `json:"why,omitempty"`
	GivenUp   bool            `json:"givenUp,omitempty"` // see [AddRecord.GivenUp]
	Timing    json.RawMessage `json:"timing,omitempty"`  // see [AddRecord.Timing]

	Host       netns  `json:"host,omitzero"`        // in which the plugins of the ADD ran; zero if it is not known
	Sequential bool   `json:"sequential,omitempty"` // each plugin has begun when the result before it was noted
	Refused    *netns `json:"refused,omitempty"`    // the record is about an ADD that was refused in this namespace; see [Manager.Refuse]

	noted *change // what has changed since it was written; nil if all of it may have
	rest  rawjson.Rest
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
	State          scratch.State              `json:"state,omitempty"`      // Planned or Deleting if it is half done in a record that is attached; see [entry.state]

	// Earlier releases wrote these in place of State. They are false once an entry has been read.
	Half bool `json:"half,omitempty"` // to be removed, in a record that is attached
	New  bool `json:"new,omitempty"`  // half done, and never attached

	rest rawjson.Rest
}

// UnmarshalJSON keeps what a later release has written.
func (e *entry) UnmarshalJSON(text []byte) error {
	type plain entry
	return rawjson.Decode(text, (*plain)(e), &e.rest)
}

// MarshalJSON writes all of e.
func (e entry) MarshalJSON() ([]byte, error) {
	type plain entry
	return rawjson.Encode(plain(e), e.rest)
}

// settle gives e, which has just been read, the State that says what an earlier release wrote.
// One that did not write New had no other sign that an entry was never attached than its result.
// settle refuses a State of a later release.
func (e *entry) settle() error {
	if e.State != "" && e.State != scratch.Planned && e.State != scratch.Deleting {
		return fmt.Errorf("unknown state %q", string(e.State))
	}
	if e.Half && e.State == "" {
		e.State = scratch.Deleting
		if e.New || !e.Adopted && (e.Result == nil || e.Unfinished) {
			e.State = scratch.Planned
		}
	}
	e.Half, e.New = false, false
	return nil
}

// UnmarshalJSON refuses a record with which Del cannot work: it is damaged.
func (r *record) UnmarshalJSON(text []byte) error {
	type plain record
	var read plain
	if err := rawjson.Decode(text, &read, &read.rest); err != nil {
		return err
	}
	if read.Delegates == nil {
		return errors.New("no delegates")
	}
	for _, es := range [][]entry{read.Delegates, read.Leftovers} {
		for i := range es {
			e := &es[i]
			if err := cmp.Or(e.settle(), usable(e.attached("", asRecorded))); err != nil {
				return fmt.Errorf("delegate %d: %w", i, err)
			}
		}
	}
	*r = record(read)
	return nil
}

// MarshalJSON writes all of r.
func (r record) MarshalJSON() ([]byte, error) {
	type plain record
	return rawjson.Encode(plain(r), r.rest)
}

// A change is noted in a record after each plugin.
type change struct {
	At         int             `json:"at"` // which delegate
	Result     json.RawMessage `json:"result,omitempty"`
	Unfinished bool            `json:"unfinished,omitempty"`
	Gone       []int           `json:"gone,omitempty"`
	Timing     json.RawMessage `json:"timing,omitempty"` // with the last plugin of an Add
}

// Noted implements [records.Changer].
func (r *record) Noted() any { //nolint:ireturn // for encoding/json
	if r.noted == nil {
		return nil
	}
	return r.noted
}

// Make implements [records.Changer].
func (r *record) Make(text records.Change) error {
	var c change
	var later rawjson.Rest
	if err := rawjson.Decode(text, &c, &later); err != nil {
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
	e.rest = e.rest.With(later)
	if err := usable(e.attached("", asRecorded)); err != nil {
		return err
	}
	r.Delegates[c.At] = e
	if c.Timing != nil {
		r.Timing = c.Timing
	}
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

// planned returns the form on disk of plan, attachments of k before they are carried out. It
// refuses a plan that cannot be carried out or recorded.
func (m *Manager) planned(k scratch.Key, plan []delegate.Attachment) ([]entry, error) {
	o := m.observe()
	es := make([]entry, len(plan))
	for i, a := range plan {
		es[i] = entry{Network: a.Network, NetNS: o.look(a.NetNS).inBoot(o.boot()), IfName: a.IfName, Args: a.Args, CapabilityArgs: a.CapabilityArgs, Origin: a.Origin, Files: a.Files}
		err := es[i].recordable()
		if o.m.occupied(m.Root, a.NetNS) {
			err = errNoNetNS
		}
		if a.ContainerID != k.ContainerID {
			err = impossible("planned for another container, " + terse.ID(a.ContainerID))
		}
		if err != nil {
			return nil, es[i].refused(k, err)
		}
	}
	if len(es) == 0 {
		return nil, impossible("the plan has no networks")
	}
	return es, nil
}

// refused says that e, which is planned for k, cannot be attached because of err.
func (e entry) refused(k scratch.Key, err error) error {
	return &delegate.Error{Event: delegate.Event{Network: e.Network.Name(), ContainerID: k.ContainerID, IfName: e.IfName}, Err: err}
}

// recordable refuses e if it would not be read back as it is written.
func (e entry) recordable() error {
	for _, path := range e.Files {
		if !filepath.IsAbs(path) {
			return impossible(fmt.Sprintf("the file %q is not an absolute path", path))
		}
	}
	for _, s := range append([]string{e.IfName, e.NetNS.Path, e.Args}, e.Files...) {
		if !utf8.ValidString(s) {
			return impossible(fmt.Sprintf("%q is not UTF-8", s))
		}
	}
	if err := usable(e.attached("", asRecorded)); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(e.CapabilityArgs)) {
		if err := keepableJSON("capability argument "+strconv.Quote(name), e.CapabilityArgs[name]); err != nil {
			return err
		}
	}
	return keepableJSON("origin", e.Origin)
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

// state returns how far e has come in a record whose state is whole: Planned, Added,
// Deleting or, if its plugins may have been told to release what they never completed,
// Leftover.
func (e entry) state(whole scratch.State) scratch.State {
	state := cmp.Or(e.State, whole)
	switch {
	case state.Attached():
		return scratch.Added
	case state == scratch.Deleting:
		return scratch.Deleting
	case e.Gone == nil:
		return scratch.Planned
	}
	return scratch.Leftover
}

// halfDone reports whether e, in a record that is attached, is to be removed.
func halfDone(e entry) bool { return e.State != "" }

// left reports whether some plugin of e may have something in the container.
func (e entry) left() bool {
	return slices.ContainsFunc(allOf(e.Network), func(i int) bool { return !slices.Contains(e.Gone, i) })
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
	left, attached := false, false
	for _, e := range r.Value.Delegates {
		was := e.state(r.State)
		left = left || e.left()
		attached = attached || e.left() && (was == scratch.Added || was == scratch.Deleting)
	}
	if r.State == scratch.Planned || r.State == scratch.Leftover || left && !attached {
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

// apart returns r without the steps of its own plugin, and attachments of which only these
// steps are left.
func (r record) apart(containerID string) (rest record, steps []delegate.Attached) {
	rest = r
	rest.Delegates = slices.Clone(r.Delegates)
	for i, e := range r.Delegates {
		own := func(p netconf.Plugin) bool { return p.Type() == r.Type && p.Step() != "" }
		others := slices.DeleteFunc(slices.Clone(e.Network.Plugins()), own)
		n, err := e.Network.WithPlugins(others...)
		if len(others) == len(e.Network.Plugins()) || err != nil {
			continue // there is no step, or nothing else
		}
		rest.Delegates[i].Network = n
		a := e.attached(containerID, asRecorded)
		for at, p := range e.Network.Plugins() {
			if !own(p) && !slices.Contains(a.Gone, at) {
				a.Gone = append(slices.Clip(a.Gone), at)
			}
		}
		slices.Sort(a.Gone)
		steps = append(steps, a)
	}
	return rest, steps
}

// sameKind reports whether a and b have the same name and the same types of plugins and steps.
func sameKind(a, b netconf.Network) bool {
	return a.Name() == b.Name() && sameTypes(a, b)
}

// sameTypes reports whether a and b have the same types of plugins.
func sameTypes(a, b netconf.Network) bool {
	return slices.EqualFunc(a.Plugins(), b.Plugins(), func(p, q netconf.Plugin) bool { return p.Type() == q.Type() && p.Step() == q.Step() })
}
