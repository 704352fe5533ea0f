package realhost

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/dump"
	"github.com/metacni/metacni/internal/thread"
)

// Container makes a container with the interface lo, which is up. It is removed with the host.
func (h *Host) Container() (path string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return "", errClosed
	}
	space, err := NewNS()
	if err != nil {
		return "", fmt.Errorf("%w: make a container: %w", errors.ErrUnsupported, err)
	}
	path = fdPath(space)
	if h.calls != nil {
		h.made++
		path = filepath.Join(nsDir, fmt.Sprintf("c%d", h.made))
		err = h.do("", func() error { return Mount(space, path) })
	}
	if err == nil {
		err = h.do(path, func() error { return Up("lo") })
	}
	if err != nil {
		_ = space.Close()
		return "", fmt.Errorf("make a container: %w", err)
	}
	h.containers[path], h.skip[path] = space, true
	return path, nil
}

// NewNS makes a network namespace that exists while the file is open.
func NewNS() (space *os.File, err error) {
	thread.Alone(func() {
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			space, err = os.Open("/proc/thread-self/ns/net")
		} else {
			err = fmt.Errorf("needs root, or root of a user namespace: %w", err)
		}
	})
	return space, err
}

// Mount gives a namespace a path on the host of the thread.
func Mount(space *os.File, path string) error {
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	return unix.Mount(fdPath(space), path, "", unix.MS_BIND, "")
}

// fdPath is a path of an open file for all processes.
func fdPath(file *os.File) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd()) }

// Attach gives a container an interface, as a main plugin does: one end of a pair, with an
// address and a default route. It returns the result that this plugin would print, for the
// prevResult of a plugin behind it. The addresses of a host's first 253 interfaces differ.
func (h *Host) Attach(path, name string) (result *types100.Result, err error) {
	_, has, err := h.Addresses(path, name)
	if has {
		err = fmt.Errorf("the container has a %s", name)
	}
	if err == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		const last = 254
		err = unix.EEXIST // the host, if it is a real one, may have the name or the route
		for try := 0; try < last && errors.Is(err, unix.EEXIST); try++ {
			h.attached++
			result, err = h.pair(path, name, fmt.Sprintf("veth%d", h.attached), byte(2+h.attached%(last-1)))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("attach %s: %w", name, err)
	}
	return result, nil
}

// pair attaches an interface with a number for its address. end is the name of the host's end.
func (h *Host) pair(path, name, end string, n byte) (*types100.Result, error) {
	gateway, ip := net.IPv4(198, 51, 100, 1).To4(), net.IPv4(198, 51, 100, n).To4()
	address := net.IPNet{IP: ip, Mask: net.CIDRMask(24, 32)}
	anywhere := net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = end, 1500
	attrs.HardwareAddr = net.HardwareAddr{0x0a, 0x59, ip[0], ip[1], ip[2], n}
	pair := netlink.NewVeth(attrs)
	pair.PeerName, pair.PeerMTU = name, 1500
	pair.PeerHardwareAddr = net.HardwareAddr{0x0a, 0x58, ip[0], ip[1], ip[2], n}
	only := func(ip net.IP) *net.IPNet { return &net.IPNet{IP: ip, Mask: net.CIDRMask(32, 32)} }
	inside := func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return inTurn(
			func() error { return netlink.AddrAdd(link, &netlink.Addr{IPNet: &address}) },
			func() error { return netlink.LinkSetUp(link) },
			func() error { return netlink.RouteReplace(&netlink.Route{Dst: &anywhere, Gw: gateway}) },
		)
	}
	err := h.do("", func() error {
		space, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = space.Close() }()
		pair.PeerNamespace = netlink.NsFd(space.Fd())
		if err := netlink.LinkAdd(pair); err != nil {
			return err
		}
		h.ends[pair.Index] = true
		if err := inTurn(
			func() error { return netlink.AddrAdd(pair, &netlink.Addr{IPNet: only(gateway)}) },
			func() error { return netlink.LinkSetUp(pair) },
			func() error {
				return netlink.RouteAdd(&netlink.Route{LinkIndex: pair.Index, Scope: netlink.SCOPE_LINK, Dst: only(ip)})
			},
			func() error { return in(path, inside) },
			func() error {
				// Until then the kernel may drop packets, for a second.
				if !wait(func() bool {
					link, err := netlink.LinkByIndex(pair.Index)
					return err == nil && link.Attrs().OperState == netlink.OperUp
				}) {
					return fmt.Errorf("%s does not come up", end)
				}
				return nil
			},
		); err != nil {
			_ = netlink.LinkDel(pair)
			return err
		}
		return nil
	})
	return &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{
			{Name: end, Mac: attrs.HardwareAddr.String(), Mtu: attrs.MTU},
			{Name: name, Mac: pair.PeerHardwareAddr.String(), Mtu: attrs.MTU, Sandbox: path},
		},
		IPs:    []*types100.IPConfig{{Interface: types100.Int(1), Address: address, Gateway: gateway}},
		Routes: []*types.Route{{Dst: anywhere, GW: gateway}},
	}, err
}

// inTurn makes steps one after the other, until one fails.
func inTurn(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// Addresses returns the addresses of an interface, without link-local ones. Without the interface, ok
// is false.
func (h *Host) Addresses(path, name string) (all []netip.Prefix, ok bool, err error) {
	err = h.do(path, func() error {
		link, err := netlink.LinkByName(name)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			return nil
		}
		if err == nil {
			ok = true
			all, err = Addresses(link)
		}
		return err
	})
	return all, ok, err
}

// Addresses returns the addresses of an interface of the thread's namespace, without link-local ones.
func Addresses(link netlink.Link) (all []netip.Prefix, err error) {
	found, err := dump.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	for _, a := range found {
		ip, _ := netip.AddrFromSlice(a.IP)
		ones, _ := a.Mask.Size()
		if ip = ip.Unmap(); !ip.IsLinkLocalUnicast() {
			all = append(all, netip.PrefixFrom(ip, ones))
		}
	}
	return all, err
}

// HasRoute reports whether the container has a route to exactly dst in its main table.
func (h *Host) HasRoute(path string, dst *net.IPNet) (has bool, err error) {
	err = h.do(path, func() error {
		all, err := dump.Whole(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_ALL) })
		has = slices.ContainsFunc(all, func(r netlink.Route) bool { return r.Dst != nil && r.Dst.String() == dst.String() })
		return err
	})
	return has, err
}

// Detach deletes an interface of a container.
func (h *Host) Detach(path, name string) error {
	return h.do(path, func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	})
}

// Remove removes a container as a reboot does: its processes and its namespace with the interfaces.
// It waits until the other ends of these on the host have gone, too. While the host lives, the path
// leads to nothing, or at least to no namespace.
func (h *Host) Remove(path string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.remove(path); err != nil {
		return fmt.Errorf("remove the container %s: %w", path, err)
	}
	return nil
}

func (h *Host) remove(path string) error {
	space, ok := h.containers[path]
	if !ok {
		return os.ErrNotExist
	}
	ends, err := h.pairs(space)
	if err != nil {
		return err
	}
	if err := kill(map[string]bool{identity(space): true}); err != nil {
		return err
	}
	delete(h.containers, path)
	if h.calls != nil {
		err = h.do("", func() error { return errors.Join(unix.Unmount(path, unix.MNT_DETACH), os.Remove(path)) })
		_ = space.Close()
	} else {
		// The number stays taken, so that the path does not lead to somebody else's file.
		h.spaces = append(h.spaces, space)
		var null *os.File
		if null, err = os.Open(os.DevNull); err == nil {
			err = unix.Dup3(int(null.Fd()), int(space.Fd()), unix.O_CLOEXEC)
			_ = null.Close()
		}
	}
	return errors.Join(err, h.do("", func() error {
		wait(func() bool { // not for good: others may hold the namespace
			return !slices.ContainsFunc(ends, func(index int) bool {
				_, err := netlink.LinkByIndex(index)
				return err == nil
			})
		})
		return nil
	}))
}

// pairs returns the indexes of the interfaces of the host that are pairs with those of a container.
func (h *Host) pairs(space *os.File) (ends []int, err error) {
	err = h.do("", func() error {
		var inside []netlink.Link
		err := in(fdPath(space), func() (err error) {
			inside, err = dump.Whole(netlink.LinkList)
			return err
		})
		for _, l := range inside {
			end, err := netlink.LinkByIndex(l.Attrs().ParentIndex)
			if err == nil && l.Type() == "veth" && end.Type() == "veth" && end.Attrs().ParentIndex == l.Attrs().Index {
				ends = append(ends, end.Attrs().Index)
			}
		}
		return err
	})
	return ends, err
}
