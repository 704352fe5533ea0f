package adopt

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
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
	IfnameRequest string
	Bytes         []byte // the configuration
}

// multus lists what Multus has recorded. It reports whether to go on.
func (n Node) multus(yield func(lifecycle.Adoption, error) bool) bool {
	if n.MultusDir == "" {
		return true
	}
	m := &multus{Node: n}
	for f, err := range files(n.Root, n.MultusDir, notRecord) {
		var a lifecycle.Adoption
		if err == nil {
			a, err = m.container(f)
		}
		if !yield(a, err) {
			return false
		}
	}
	return !slices.ContainsFunc(m.errs, func(err error) bool { return !yield(lifecycle.Adoption{}, err) })
}

// notRecord reports whether a file is none of a [lifecycle.Manager], whose
// directory may be the same.
func notRecord(name string) bool {
	return !strings.Contains(name, "@") && !strings.HasPrefix(name, ".tmp-")
}

// multus is Multus's state, as far as it has been read.
type multus struct {
	Node

	results map[string][]*entry // of its networks, by container; nil until they are read
	runtime map[string][]*entry // all of the runtime's, by container
	errs    []error             // why results lacks some
}

// container returns what the file f has recorded. Runtimes ask for eth0, unless their entry of
// Multus's own network says otherwise.
func (m *multus) container(f file) (lifecycle.Adoption, error) {
	k := scratch.Key{Network: m.Network, ContainerID: filepath.Base(f.path), IfName: "eth0"}
	if err := utils.ValidateContainerID(k.ContainerID); err != nil {
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
	sources := []string{f.path}
	own := m.ownEntry(k.ContainerID)
	if own != nil {
		k.IfName = own.IfName
		sources = append(sources, own.path)
	}
	var attached []delegate.Attached
	results, whole := slices.Clone(m.results[k.ContainerID]), true
	for i, d := range delegates {
		network, err := netconf.Parse(d.Bytes)
		if err != nil {
			return lifecycle.Adoption{}, failed(f.path, fmt.Errorf("network %d: %w", i+1, err))
		}
		name := k.IfName
		if i > 0 {
			name = "net" + strconv.Itoa(i)
		}
		name = cmp.Or(d.IfnameRequest, name)
		at := slices.IndexFunc(results, func(e *entry) bool { return e.NetworkName == network.Name() && e.IfName == name })
		if at < 0 {
			whole = false
			attached = append(attached, delegate.Attached{Attachment: delegate.Attachment{Network: network, ContainerID: k.ContainerID, IfName: name}})
			continue
		}
		a, err := results[at].attached()
		if err != nil {
			return lifecycle.Adoption{}, err
		}
		attached, sources = append(attached, a), append(sources, results[at].path)
		results = slices.Delete(results, at, at+1)
	}
	for _, e := range results { // attached later, in the order of their files
		a, err := e.attached()
		if err != nil {
			return lifecycle.Adoption{}, err
		}
		attached, sources = append(attached, a), append(sources, e.path)
	}
	fill(attached)
	a := adoption(m.Root, k, attached, sources...)
	if !whole && own == nil && time.Since(f.changed) < settling {
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

// readEntries reads what libcni has cached, for Multus and for the runtime. Bad entries of the
// runtime are for others to report.
func (m *multus) readEntries() {
	if m.results != nil {
		return
	}
	m.results, m.errs = m.entries(m.MultusDir)
	if m.CacheDir != "" {
		m.runtime, _ = m.entries(m.CacheDir)
	}
}

// entries returns the entries in a cache of libcni by container, and why others cannot be used.
func (n Node) entries(dir string) (found map[string][]*entry, errs []error) {
	found = make(map[string][]*entry)
	for f, err := range files(n.Root, cache(dir), func(string) bool { return true }) {
		if e, err := readEntry(f, err); err != nil {
			errs = append(errs, err)
		} else {
			found[e.ContainerID] = append(found[e.ContainerID], e)
		}
	}
	return found, errs
}

// ownEntry is what the runtime has cached of Multus's own network.
func (m *multus) ownEntry(id string) *entry {
	for _, e := range m.runtime[id] {
		network, err := netconf.Parse(e.Config)
		if err == nil && has(network, func(typ string) bool { return strings.HasPrefix(typ, "multus") }) {
			return e
		}
	}
	return nil
}
