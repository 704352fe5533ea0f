package lifecycle

// A machine tells of network namespaces. Tests have one of their own.
type machine interface {
	// identify returns the identity of the network namespace at path in root. Without a
	// network namespace there, or the rights to look at it, the identity lacks the inode.
	identify(root, path string) netns

	// occupied reports whether something that is no network namespace is at path in root.
	occupied(root, path string) bool

	// own returns the identities of the namespaces that no container has: that of this
	// process, and that of the first process in root.
	own(root string) []netns

	// boot returns the ID of this boot, or "" if procfs does not tell.
	boot() string

	// ask asks the kernel for the namespace with the number of n: Alive if it exists, Dead if
	// the kernel says that there is none to a process that may know.
	ask(n netns) Life

	// scan looks for namespaces in everything that can hold one.
	scan(root string, wanted []netns) scanned

	// links returns the interfaces of the network namespace at path in root, or of that of this
	// process if path is empty.
	links(root, path string) ([]hostLink, error)

	// removeInside removes the veth or macvlan interface with a MAC address from there.
	removeInside(root, path, mac string)

	// ended reports whether the namespace with an ID in that of this process has certainly
	// ended, although the kernel has not removed its interfaces yet.
	ended(id int) bool
}

// scanned is the outcome of a scan.
type scanned struct {
	found  map[uint64][]netns // by inode; without a number if it could not be read
	unseen string             // why the scan did not see everything, or ""
}

// A hostLink is an interface. Of a veth pair, peer is the ID of the other end's namespace.
type hostLink struct {
	name, mac, kind string
	peer            int
}

// here is the peer of a veth pair with both ends in one namespace.
const here = -1

func (m *Manager) onMachine() machine { //nolint:ireturn // tests have another
	if m.machine != nil {
		return m.machine
	}
	return kernel{}
}
