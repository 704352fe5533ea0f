package lifecycle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/dump"
	"github.com/metacni/metacni/internal/inroot"
)

// kernel is the machine of this process.
type kernel struct{}

func (kernel) identify(root, path string) (n netns) {
	if path != "" {
		_ = opened(root, path, func(fd int) { n = identity(fd) }) // on failure n stays without identity
	}
	n.Path = path
	return n
}

// opened calls do with a descriptor of the file at path in root.
func opened(root, path string, do func(fd int)) error {
	return inroot.With(root, path, func(path string) error {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // nothing was written
		do(fd)
		return nil
	})
}

// identity returns what identifies the network namespace of a descriptor, without a path, or nothing
// if it is none.
func identity(fd int) (n netns) {
	var st unix.Stat_t
	if !isNetNS(fd) || unix.Fstat(fd, &st) != nil {
		return n
	}
	n.Dev, n.Inode = uint64(st.Dev), st.Ino //nolint:unconvert // not on every architecture
	if id := namespaceID(fd); id != 0 {
		n.Number = "id/" + strconv.FormatUint(id, 10)
	} else if id := cookie(fd); id != 0 {
		n.Number = "cookie/" + strconv.FormatUint(id, 10)
	}
	return n
}

// isNetNS reports whether a descriptor is that of a network namespace.
func isNetNS(fd int) bool {
	if !isOn(fd, unix.NSFS_MAGIC) {
		return false
	}
	typ, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	return err == nil && typ == unix.CLONE_NEWNET
}

func isOn(fd int, magic int64) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) == nil && int64(st.Type) == magic //nolint:unconvert // not on every architecture
}

func (kernel) occupied(root, path string) bool {
	none := false
	err := opened(root, path, func(fd int) { none = !isNetNS(fd) })          // what is not there occupies nothing
	return none || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) // a socket, a device
}

func (k kernel) own(root string) (all []netns) {
	for _, n := range []netns{k.identify("", "/proc/thread-self/ns/net"), k.identify(root, "/proc/1/ns/net")} {
		if n.Inode != 0 {
			all = append(all, n)
		}
	}
	return all
}

// boot does without what containers have mounted over the file.
func (kernel) boot() string {
	fd, err := unix.Open("/proc/sys/kernel/random/boot_id", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	text := make([]byte, 64)
	n, err := unix.Read(fd, text)
	if err != nil || n <= 0 || !isOn(fd, unix.PROC_SUPER_MAGIC) {
		return ""
	}
	return strings.TrimSpace(string(text[:n]))
}

// namespaceID asks for the number of the namespace itself (Linux 6.18).
func namespaceID(fd int) (id uint64) {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.NS_GET_ID, uintptr(unsafe.Pointer(&id)))
	if errno != 0 {
		return 0
	}
	return id
}

// cookie returns the SO_NETNS_COOKIE of a socket in the namespace of a descriptor (Linux 5.14).
// This needs the right to enter the namespace.
func cookie(netns int) (id uint64) {
	_ = ns.WithNetNSPath(fmt.Sprintf("/proc/self/fd/%d", netns), func(ns.NetNS) error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // nothing was written
		id, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	return id
}

// The file handles of namespaces (Linux 6.18, linux/nsfs.h and linux/fcntl.h).
const (
	fdNSFSRoot = -10003
	fileIDNSFS = 0xf1
)

// ask opens the namespace by its file handle. The kernel answers ESTALE for a namespace that has
// ended, but also to a process without the rights over a living one.
func (k kernel) ask(n netns) Life {
	_, digits, _ := strings.Cut(n.number(), "/")
	number, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n.Inode == 0 || n.Inode > 1<<32-1 {
		return Unknown
	}
	handle := binary.NativeEndian.AppendUint64(nil, number)
	handle = binary.NativeEndian.AppendUint32(handle, unix.CLONE_NEWNET)
	handle = binary.NativeEndian.AppendUint32(handle, uint32(n.Inode)) //nolint:gosec // checked above
	fd, err := unix.OpenByHandleAt(fdNSFSRoot, unix.NewFileHandle(fileIDNSFS, handle), unix.O_RDONLY|unix.O_CLOEXEC)
	switch {
	case err == nil:
		_ = unix.Close(fd)
		return Alive
	case errors.Is(err, unix.ESTALE) && n.in(k.boot()) && may(unix.CAP_SYS_ADMIN):
		return Dead
	}
	return Unknown
}

// initialUser is the inode of the kernel's first user namespace, and initialPID of the first PID
// namespace (include/linux/proc_ns.h).
const (
	initialUser = 0xEFFFFFFD
	initialPID  = 0xEFFFFFFC
)

// may reports whether this thread has effective capabilities in the kernel's first user namespace.
func may(capabilities ...int) bool {
	if inode, ok := linkTo("", "/proc/thread-self/ns/user", "user"); !ok || inode != initialUser {
		return false
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&header, &data[0]) != nil {
		return false
	}
	for _, c := range capabilities {
		if data[c/32].Effective&(1<<(c%32)) == 0 {
			return false
		}
	}
	return true
}

// linkTo returns the inode of a namespace of this kind to which the link at path in root leads.
func linkTo(root, path, kind string) (inode uint64, ok bool) {
	dir, base := path[:strings.LastIndexByte(path, '/')], path[strings.LastIndexByte(path, '/')+1:]
	err := inroot.With(root, dir, func(dir string) error {
		link, err := os.Readlink(dir + "/" + base)
		inode, ok = inodeIn(link, kind)
		return err
	})
	return inode, ok && err == nil
}

// inodeIn returns the inode in text such as "net:[4026531840]".
func inodeIn(text, kind string) (uint64, bool) {
	digits, ok := strings.CutPrefix(text, kind+":[")
	if !ok {
		return 0, false
	}
	digits, ok = strings.CutSuffix(digits, "]")
	inode, err := strconv.ParseUint(digits, 10, 64)
	return inode, ok && err == nil
}

func (kernel) links(root, path string) (all []hostLink, err error) {
	list := func() error {
		found, err := dump.Whole(netlink.LinkList)
		for _, l := range found {
			all = append(all, hostLink{l.Attrs().Name, l.Attrs().HardwareAddr.String(), l.Type(), l.Attrs().NetNsID})
		}
		return err
	}
	if path == "" {
		err = list()
	} else {
		err = within(root, path, list)
	}
	return all, err
}

func (kernel) removeInside(root, path, mac string) {
	_ = within(root, path, func() error { // what stays ends with the namespace
		links, err := dump.Whole(netlink.LinkList)
		for _, l := range links {
			if own := l.Attrs().HardwareAddr.String() == mac; own && (l.Type() == "veth" || l.Type() == "macvlan") {
				return netlink.LinkDel(l)
			}
		}
		return err
	})
}

// within calls do in the network namespace at path in root.
func within(root, path string, do func() error) error {
	return inroot.With(root, path, func(path string) error {
		return ns.WithNetNSPath(path, func(ns.NetNS) error { return do() })
	})
}

// ended asks for an interface of the namespace, which the kernel looks up only while the namespace
// has users (Linux 4.20).
func (kernel) ended(id int) bool {
	const loopback = 1 // the index of lo
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = loopback
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(id)))) //nolint:gosec // 32 bits, as the kernel gave it
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return errors.Is(err, unix.EINVAL)
}
