package lifecycle

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
)

// Life says whether the container of a record lives. Only proof makes it Alive or Dead, and the
// proof is the identity of the network namespace: device, inode, and the number that the kernel
// uses once per boot. Names, addresses, times and interfaces in the namespace prove nothing.
//
// Each of these suffices for Alive:
//
//   - A path leads to the recorded namespace: the recorded path, or one that the runtime passes.
//   - The kernel opens the namespace with the recorded number (Linux 6.18).
//   - A thread, a mount, a descriptor or a socket of this machine has it.
//   - The interface on the host that the result names is there, with the recorded MAC address.
//
// And each of these for Dead:
//
//   - The machine has been restarted: procfs has another boot ID than at the time of the record.
//   - The kernel says that there is no such namespace, to a process that may see all namespaces.
//   - Two scans, one sweep apart, saw every thread, mount, descriptor and socket of the machine and
//     did not find it, and the recorded path leads to another namespace or to nothing.
//
// Everything else is Unknown: for example, a path that does not exist for this process may exist
// for another.
type Life int

// Unknown is neither of the others.
const (
	Unknown Life = iota
	Alive
	Dead
)

// String returns "unknown", "alive" or "dead".
func (l Life) String() string { return [...]string{"unknown", "alive", "dead"}[l] }

// A Judgement says whether the container of a record lives, and why.
type Judgement struct {
	Life Life

	// Why is the proof, or why there is none.
	Why string

	// Pending says that the next [Sweeper.Sweep] may know more: the namespace was not found
	// although everything was looked at.
	Pending bool
}

// Judge says which of the containers of rs live. It asks the kernel, and looks for namespaces in
// all processes of the machine if that leaves any unknown. That takes up to a second, and needs
// the capabilities CAP_SYS_ADMIN and CAP_SYS_PTRACE outside of user namespaces, and the initial PID
// namespace. It never says Dead because of one scan; see [Sweeper].
func (m *Manager) Judge(rs []AddRecord) []Judgement {
	o := m.observe()
	js := make([]Judgement, len(rs))
	var wanted []netns
	var missing []int // records with namespaces that are wanted
	for i, r := range rs {
		if js[i] = o.judge(r.entries); js[i].Life != Unknown {
			continue
		}
		if ns := o.unknown(r.entries); len(ns) > 0 {
			wanted, missing = append(wanted, ns...), append(missing, i)
		}
	}
	if len(missing) == 0 {
		return js
	}
	seen := m.onMachine().scan(m.Root, wanted)
	for _, i := range missing {
		js[i] = o.search(rs[i].entries, seen)
	}
	return js
}

// An observer judges recorded network namespaces. It looks at each thing once, so it belongs to
// one operation. Goroutines must not share it.
type observer struct {
	m     machine
	root  string
	given string // a path to the container's namespace that the runtime has passed

	here  map[string]netns // identities of what is at paths
	own   []netns          // namespaces that no container has
	boot  func() string    // the ID of this boot
	nsfs  func() uint64    // the device of namespaces, or 0
	links func() ([]hostLink, error)
}

func (m *Manager) observe() *observer {
	machine := m.onMachine()
	return &observer{
		m:     machine,
		root:  m.Root,
		here:  make(map[string]netns),
		boot:  sync.OnceValue(machine.boot),
		nsfs:  sync.OnceValue(func() uint64 { return machine.identify("", ownNetNS).Dev }),
		links: sync.OnceValues(func() ([]hostLink, error) { return machine.links("", "") }),
	}
}

// look returns the identity of the namespace at path.
func (o *observer) look(path string) netns {
	n, ok := o.here[path]
	if !ok {
		n = o.m.identify(o.root, path)
		o.here[path] = n
	}
	return n
}

// judge says whether a container lives: if one of its namespaces does, or its interface on the
// host is there. It is dead if all of its namespaces are.
func (o *observer) judge(es []entry) Judgement {
	var j Judgement
	dead := 0
	for _, e := range es {
		one := o.judgeOne(e.NetNS)
		switch one.Life {
		case Alive:
			return one
		case Dead:
			dead++
		}
		if j.Why == "" || one.Life == Unknown {
			j = one
		}
	}
	switch {
	case len(es) == 0:
		return Judgement{Why: "the record has no attachment"}
	case dead == len(es) && slices.ContainsFunc(es, func(e entry) bool { return e.NetNS.before(o.boot()) }):
		return j
	case slices.ContainsFunc(es, o.connected): // a container may have moved its interface to another namespace
		return Judgement{Life: Alive, Why: "its interface on the host is there"}
	case dead == len(es):
		return j
	}
	j.Life = Unknown
	return j
}

// judgeOne judges one namespace by the kernel and by the paths that are known.
func (o *observer) judgeOne(n netns) Judgement {
	switch {
	case n.before(o.boot()):
		return Judgement{Life: Dead, Why: "the machine has been restarted since"}
	case n.Inode == 0:
		return Judgement{Why: "no network namespace was seen when it was recorded"}
	case !n.known(o.nsfs):
		return Judgement{Why: "the record has a file that is no network namespace"}
	case o.path(n) != "":
		return Judgement{Life: Alive, Why: "its network namespace is at its path"}
	}
	switch o.m.ask(n) {
	case Alive:
		return Judgement{Life: Alive, Why: "the kernel has its network namespace"}
	case Dead:
		return Judgement{Life: Dead, Why: "the kernel has its network namespace no more"}
	}
	return Judgement{Why: "its network namespace is not at its path"}
}

// path returns a path that leads to n: the runtime's or the recorded one. It returns "" if none
// does.
func (o *observer) path(n netns) string {
	for _, path := range []string{o.given, n.Path} {
		if path != "" && n.compare(o.look(path), o.boot()) == same {
			return path
		}
	}
	return ""
}

// reachable returns a path that leads to the namespace of es, or the recorded one if neither that
// namespace nor the one at the path can be identified. It returns "" if there is none.
func (o *observer) reachable(es []entry) string {
	for _, e := range es {
		if path := o.path(e.NetNS); path != "" {
			return path
		}
	}
	for _, e := range es {
		if n := e.NetNS; n.Inode == 0 && o.look(n.Path).Inode == 0 {
			return n.Path
		}
	}
	return ""
}

// forPlugin returns the path that a plugin receives for an attachment in n: one that leads to it.
// Without an identity that is the runtime's. It is never the host's namespace, nor anything that
// is no network namespace.
func (o *observer) forPlugin(n netns) string {
	path := o.path(n)
	if n.Inode == 0 {
		path = o.given
	}
	if path == "" || o.hosts(o.look(path)) || o.m.occupied(o.root, path) {
		return ""
	}
	return path
}

// elsewhere reports whether the path of the runtime leads to another namespace than that of es, or
// to nothing. Without a path and an identity in es it may lead anywhere.
func (o *observer) elsewhere(es []entry) bool {
	now := o.look(o.given)
	return o.m.occupied(o.root, o.given) || len(es) > 0 && !slices.ContainsFunc(es, func(e entry) bool {
		switch e.NetNS.compare(now, o.boot()) {
		case same:
			return true
		case different:
			return false
		}
		return e.NetNS.Path == "" || e.NetNS.Path == o.given
	})
}

// hosts reports whether n is a namespace that no container has.
func (o *observer) hosts(n netns) bool {
	if o.own == nil {
		o.own = o.m.own(o.root)
	}
	return slices.ContainsFunc(o.own, func(own netns) bool { return own.compare(n, o.boot()) == same })
}

// connected reports whether the interface of e on the host is there, as its result has it, and the
// namespace of its other end has not ended. Only a veth pair ends with that namespace: the bridge
// that a result names too stays.
func (o *observer) connected(e entry) bool {
	made := hostInterfaces(e)
	if len(made) == 0 {
		return false
	}
	links, _ := o.links() // of those that cannot be read nothing is known
	return slices.ContainsFunc(links, func(l hostLink) bool {
		same := l.kind == "veth" && slices.Contains(made, hostLink{name: l.name, mac: l.mac})
		return same && (l.peer == here || !o.m.ended(l.peer))
	})
}

// disconnected reports whether the veth pair of e is certainly gone: its result names an interface
// on the host, and no interface with this name or this MAC address is there any more. That must be
// the host of the ADD.
func (o *observer) disconnected(e entry, host netns) bool {
	links, err := o.links()
	if err != nil || len(links) == 0 || host.Inode == 0 || host.compare(o.m.identify("", ownNetNS), o.boot()) != same {
		return false
	}
	gone := false
	for _, made := range hostInterfaces(e) {
		there := slices.ContainsFunc(links, func(l hostLink) bool { return l.name == made.name || l.mac == made.mac })
		isPeer := !slices.ContainsFunc(links, func(l hostLink) bool { return l.name == made.name && l.kind != "veth" })
		if there && isPeer {
			return false
		}
		gone = gone || !there
	}
	return gone
}

// ownNetNS is the network namespace in which this process runs plugins.
const ownNetNS = "/proc/thread-self/ns/net"

// hostInterfaces returns the names and MAC addresses of the interfaces of e on the host.
func hostInterfaces(e entry) (made []hostLink) {
	for _, i := range interfacesIn(e.Result) {
		if i.Sandbox == "" && i.Name != "" && i.Name != e.IfName && i.Mac != "" {
			made = append(made, hostLink{name: i.Name, mac: i.Mac})
		}
	}
	return made
}

// A resultInterface is an interface in the result of a plugin. Mac is in lower case.
type resultInterface struct{ Name, Mac, Sandbox string }

// interfacesIn returns the interfaces in a result, or none if it cannot be read.
func interfacesIn(text json.RawMessage) []resultInterface {
	var result struct{ Interfaces []resultInterface }
	_ = json.Unmarshal(text, &result)
	for i := range result.Interfaces {
		result.Interfaces[i].Mac = strings.ToLower(result.Interfaces[i].Mac)
	}
	return result.Interfaces
}

// unknown returns the namespaces of es for which a scan can look.
func (o *observer) unknown(es []entry) (ns []netns) {
	for _, e := range es {
		if n := e.NetNS; n.known(o.nsfs) && o.judgeOne(n).Life == Unknown {
			ns = append(ns, n)
		}
	}
	return ns
}

// search judges a container by what a scan has seen.
func (o *observer) search(es []entry, seen scanned) Judgement {
	j := Judgement{Why: "its network namespace was found nowhere: the next sweep looks again", Pending: true}
	for _, e := range es {
		n := e.NetNS
		if o.judgeOne(n).Life == Dead {
			continue
		}
		if !n.known(o.nsfs) {
			return Judgement{Why: o.judgeOne(n).Why}
		}
		for _, found := range seen.found[n.Inode] {
			if found.Dev == 0 { // it could not be opened, and is on nsfs
				found.Dev = n.Dev
			}
			switch n.compare(found, o.boot()) {
			case same:
				return Judgement{Life: Alive, Why: "a process or a mount has its network namespace"}
			case unsure:
				j = Judgement{Why: "a network namespace may be its own, but its number cannot be read"}
			}
		}
		if why := o.covered(n); why != "" && j.Pending {
			j = Judgement{Why: why}
		}
	}
	if seen.unseen != "" {
		j = Judgement{Why: "its network namespace is not at its path, and may be elsewhere: " + seen.unseen}
	}
	return j
}

// covered returns why the recorded path of n may lead to n for others, or "" if it does not.
func (o *observer) covered(n netns) string {
	if n.Path == "" || n.compare(o.look(n.Path), o.boot()) == different {
		return ""
	}
	switch err := there(o.root, n.Path); {
	case err == nil:
		return "what is at its path cannot be identified"
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("its path cannot be looked at: %v", err)
	}
	return ""
}
