package adopt

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// settling is how long an ADD may take: until then, missing networks may come.
const settling = 5 * time.Minute

var errAttaching = errors.New("not all networks are recorded yet: the container may just be attached")

// A multusDelegate is one network in Multus's state of a container.
type multusDelegate struct {
	Conf, ConfList json.RawMessage // what was read of Bytes
	IfnameRequest  string
	Bytes          []byte // the configuration
}

// network is the configuration of d, as Multus read it if that is recorded.
func (d multusDelegate) network() (netconf.Network, error) {
	if len(d.Bytes) > 0 {
		return netconf.Parse(d.Bytes)
	}
	if n, err := netconf.Parse(d.ConfList); err == nil {
		return n, nil
	}
	return netconf.Parse(d.Conf)
}

// name is that of the interface of d, the i-th: empty for the runtime's.
func (d multusDelegate) name(i int) string {
	if d.IfnameRequest != "" || i == 0 {
		return d.IfnameRequest
	}
	return "net" + strconv.Itoa(i)
}

// multus lists what Multus has recorded.
func (n Node) multus() iter.Seq2[lifecycle.Adoption, error] {
	return func(yield func(lifecycle.Adoption, error) bool) {
		if n.MultusDir == "" {
			return
		}
		m := &multus{Node: n}
		for f, err := range files(n.Root, n.MultusDir, notRecord) {
			var a lifecycle.Adoption
			if err == nil {
				a, err = m.container(f)
			}
			if !yield(a, err) {
				return
			}
		}
		for _, err := range m.errs {
			if !yield(lifecycle.Adoption{}, err) {
				return
			}
		}
	}
}

// notRecord reports whether a file is none of a [lifecycle.Manager], whose
// directory may be the same.
func notRecord(name string) bool {
	return !strings.Contains(name, "@") && !strings.HasPrefix(name, ".tmp-")
}

// multus is Multus's state, as far as it has been read.
type multus struct {
	Node

	read    bool
	results map[string][]*entry // of its networks, by container
	runtime map[string][]*entry // all of the runtime's, by container
	errs    []error             // why results lacks some
}

// container returns what the file f has recorded.
func (m *multus) container(f file) (lifecycle.Adoption, error) {
	id := filepath.Base(f.path)
	if err := utils.ValidateContainerID(id); err != nil {
		return lifecycle.Adoption{}, failed(f.path, err)
	}
	var delegates []multusDelegate
	err := json.Unmarshal(f.data, &delegates)
	if err == nil && len(delegates) == 0 {
		err = errors.New("no networks")
	}
	if err != nil {
		return lifecycle.Adoption{}, failed(f.path, fmt.Errorf("incomplete, or not a state of Multus: %w", err))
	}
	m.readEntries()
	own := m.ownEntry(id)
	ifname := m.firstName(id, own, delegates)
	sources := []string{f.path}
	if own != nil {
		sources = append(sources, own.path)
	}
	var attached []delegate.Attached
	var used []*entry
	whole := true
	for i, d := range delegates {
		network, err := d.network()
		if err != nil {
			return lifecycle.Adoption{}, failed(f.path, fmt.Errorf("network %d: %w", i+1, err))
		}
		want := cmp.Or(d.name(i), ifname)
		a := delegate.Attached{Attachment: delegate.Attachment{Network: network, ContainerID: id, IfName: want}}
		if e := m.entry(id, network.Name(), want); e != nil {
			if a, err = e.attached(); err != nil {
				return lifecycle.Adoption{}, err
			}
			used = append(used, e)
		} else {
			whole = false
		}
		attached = append(attached, a)
	}
	for _, e := range m.results[id] { // in the order of their files
		if slices.Contains(used, e) {
			continue
		}
		a, err := e.attached()
		if err != nil {
			return lifecycle.Adoption{}, err
		}
		attached, used = append(attached, a), append(used, e)
	}
	for _, e := range used {
		sources = append(sources, e.path)
	}
	fill(attached)
	a := adoption(m.Root, scratch.Key{Network: m.Network, ContainerID: id, IfName: ifname}, attached, sources...)
	if !whole && own == nil && !a.Gone && time.Since(f.changed) < settling {
		return lifecycle.Adoption{}, failed(f.path, errAttaching)
	}
	return a, nil
}

// fill gives attachments without a result what those that have one know of the
// container.
func fill(attached []delegate.Attached) {
	netns := ""
	for _, a := range attached {
		netns = cmp.Or(netns, a.NetNS)
	}
	for i, a := range attached {
		attached[i].NetNS = cmp.Or(a.NetNS, netns)
		if a.Result == nil {
			attached[i].Args = cmp.Or(a.Args, attached[0].Args)
		}
	}
}

// readEntries reads what libcni has cached, for Multus and for the runtime.
func (m *multus) readEntries() {
	if m.read {
		return
	}
	m.read = true
	all := func(string) bool { return true }
	of := func(dir string, failed func(error)) map[string][]*entry {
		found := make(map[string][]*entry)
		for e, err := range m.entries(cache(dir), all) {
			if err != nil {
				failed(err)
				continue
			}
			found[e.ContainerID] = append(found[e.ContainerID], e)
		}
		return found
	}
	m.results = of(m.MultusDir, func(err error) { m.errs = append(m.errs, err) })
	if m.CacheDir != "" {
		m.runtime = of(m.CacheDir, func(error) {}) // it is the others' to read
	}
}

// ownEntry is what the runtime has cached of Multus's own network.
func (m *multus) ownEntry(id string) *entry {
	for _, e := range m.runtime[id] {
		network, err := netconf.Parse(e.Config)
		if err == nil && slices.ContainsFunc(network.Plugins(), func(p netconf.Plugin) bool { return strings.HasPrefix(p.Type(), "multus") }) {
			return e
		}
	}
	return nil
}

// entry is what is cached of a network of the container. Multus before 3.7 used
// the runtime's cache for that.
func (m *multus) entry(id, network, ifname string) *entry {
	for _, e := range slices.Concat(m.results[id], m.runtime[id]) {
		if e.NetworkName == network && e.IfName == ifname {
			return e
		}
	}
	return nil
}

// firstName is the name of the interface that the runtime asked for: what it
// has cached says so, or else what is cached of the first network and is none of
// the other interfaces. Runtimes ask for eth0.
func (m *multus) firstName(id string, own *entry, delegates []multusDelegate) string {
	if own != nil {
		return own.IfName
	}
	first, err := delegates[0].network()
	if err != nil || delegates[0].IfnameRequest != "" {
		return "eth0"
	}
	var others, names []string
	for i, d := range delegates[1:] {
		others = append(others, d.name(i+1))
	}
	for _, e := range slices.Concat(m.results[id], m.runtime[id]) {
		if e.NetworkName == first.Name() && !slices.Contains(others, e.IfName) {
			names = append(names, e.IfName)
		}
	}
	if len(names) == 1 {
		return names[0]
	}
	return "eth0"
}
