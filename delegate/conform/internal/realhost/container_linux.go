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

	"github.com/metacni/metacni/internal/thread"
)

// A Container is a network namespace on a host. Goroutines may share it. It is removed with
// the host.
type Container struct {
	// Path is for CNI_NETNS of a plugin that runs on the host.
	Path string

	host  *Host
	space *os.File        // the namespace; /dev/null when it is gone
	links *netlink.Handle // in the namespace; nil when it is gone
	ends  []int           // indexes of the host's ends of what was attached
}

// Container makes a container with the interface lo, which is up.
func (h *Host) Container() (*Container, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, errClosed
	}
	c := &Container{host: h}
	if err := c.make(); err != nil {
		c.release()
		return nil, fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	fd := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), c.space.Fd())
	c.Path = fd
	if h.calls != nil {
		c.Path = filepath.Join(nsDir, fmt.Sprintf("c%d", len(h.containers)+1))
		err := h.do(func() error {
			if err := os.WriteFile(c.Path, nil, 0o600); err != nil {
				return err
			}
			return unix.Mount(fd, c.Path, "", unix.MS_BIND, "")
		})
		if err != nil {
			c.release()
			return nil, fmt.Errorf("make a container: %w", err)
		}
	}
	h.containers = append(h.containers, c)
	return c, nil
}

// make makes the namespace.
func (c *Container) make() (err error) {
	thread.Alone(func() {
		err = unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			c.space, err = os.Open("/proc/thread-self/ns/net")
		}
		if err == nil {
			c.links, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		}
		if err == nil {
			err = Up(c.links, "lo")
		}
	})
	if err != nil {
		return fmt.Errorf("make a container (needs root, or root of a user namespace): %w", err)
	}
	return nil
}

// release closes what the program has open of the namespace.
func (c *Container) release() {
	if c.links != nil {
		c.links.Close()
		c.links = nil
	}
	if c.space != nil {
		_ = c.space.Close()
	}
}

// use calls f with the links of the namespace. Errors begin with what, the purpose of f.
func (c *Container) use(what string, f func(links *netlink.Handle) error) error {
	c.host.mu.Lock()
	defer c.host.mu.Unlock()
	err := errors.New("the container is gone")
	if c.links != nil {
		err = f(c.links)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Attach gives the container an interface, as a main plugin does: one end of a pair, with an
// address and a default route. It returns the result that this plugin would print, for the
// prevResult of a plugin behind it. The addresses of a host's first 253 interfaces differ.
func (c *Container) Attach(name string) (result *types100.Result, err error) {
	err = c.use("attach "+name, func(links *netlink.Handle) error {
		if _, err := links.LinkByName(name); err == nil {
			return fmt.Errorf("it has a %s", name)
		}
		const last = 254
		err := error(unix.EEXIST) // the host, if it is a real one, may have the name or the route
		for try := 0; try < last && errors.Is(err, unix.EEXIST); try++ {
			c.host.attached++
			result, err = c.attach(name, fmt.Sprintf("veth%d", c.host.attached), byte(2+c.host.attached%(last-1)))
		}
		return err
	})
	return result, err
}

// attach makes the interface with a number for its address.
func (c *Container) attach(name, end string, n byte) (_ *types100.Result, err error) {
	h := c.host
	gateway, ip := net.IPv4(198, 51, 100, 1).To4(), net.IPv4(198, 51, 100, n).To4()
	address := net.IPNet{IP: ip, Mask: net.CIDRMask(24, 32)}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = end, 1500
	attrs.HardwareAddr = net.HardwareAddr{0x0a, 0x59, ip[0], ip[1], ip[2], n}
	pair := netlink.NewVeth(attrs)
	pair.PeerName, pair.PeerNamespace, pair.PeerMTU = name, netlink.NsFd(c.space.Fd()), 1500
	pair.PeerHardwareAddr = net.HardwareAddr{0x0a, 0x58, ip[0], ip[1], ip[2], n}
	if err := h.links.LinkAdd(pair); err != nil {
		return nil, err
	}
	c.ends = append(c.ends, pair.Index)
	defer func() {
		if err != nil {
			_ = h.links.LinkDel(pair)
		}
	}()
	only := func(ip net.IP) *net.IPNet { return &net.IPNet{IP: ip, Mask: net.CIDRMask(32, 32)} }
	for _, step := range []func() error{
		func() error { return h.links.AddrAdd(pair, &netlink.Addr{IPNet: only(gateway)}) },
		func() error { return Up(h.links, end) },
		func() error {
			return h.links.RouteAdd(&netlink.Route{LinkIndex: pair.Index, Scope: netlink.SCOPE_LINK, Dst: only(ip)})
		},
		func() error { return c.links.AddrAdd(named(name), &netlink.Addr{IPNet: &address}) },
		func() error { return Up(c.links, name) },
		func() error { return c.links.RouteReplace(&netlink.Route{Dst: anywhere(), Gw: gateway}) },
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	// Until then the kernel may drop packets, for a second.
	if !wait(func() bool {
		link, err := h.links.LinkByIndex(pair.Index)
		return err == nil && link.Attrs().OperState == netlink.OperUp
	}) {
		return nil, fmt.Errorf("%s does not come up", end)
	}
	return &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{
			{Name: end, Mac: attrs.HardwareAddr.String(), Mtu: attrs.MTU},
			{Name: name, Mac: pair.PeerHardwareAddr.String(), Mtu: attrs.MTU, Sandbox: c.Path},
		},
		IPs:    []*types100.IPConfig{{Interface: types100.Int(1), Address: address, Gateway: gateway}},
		Routes: []*types.Route{{Dst: *anywhere(), GW: gateway}},
	}, nil
}

// detach removes the host's ends of what was attached, if they are still there.
func (c *Container) detach() error {
	var all []error
	for _, index := range c.ends {
		err := c.host.links.LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}})
		if !errors.Is(err, unix.ENODEV) {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// Interface returns the addresses of an interface, without link-local ones. Without the
// interface, ok is false.
func (c *Container) Interface(name string) (addresses []netip.Prefix, ok bool, err error) {
	err = c.use("look at "+name, func(links *netlink.Handle) error {
		link, err := links.LinkByName(name)
		if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
			return nil
		}
		if err != nil {
			return err
		}
		ok = true
		addresses, err = Addresses(links, link)
		return err
	})
	return addresses, ok, err
}

// Addresses returns the addresses of an interface, without link-local ones.
func Addresses(links *netlink.Handle, link netlink.Link) (addresses []netip.Prefix, err error) {
	all, err := whole(func() ([]netlink.Addr, error) { return links.AddrList(link, netlink.FAMILY_ALL) })
	for _, a := range all {
		ip, _ := netip.AddrFromSlice(a.IP)
		ones, _ := a.Mask.Size()
		if ip = ip.Unmap(); !ip.IsLinkLocalUnicast() {
			addresses = append(addresses, netip.PrefixFrom(ip, ones))
		}
	}
	return addresses, err
}

// HasRoute reports whether the container has a route to exactly dst in its main table.
func (c *Container) HasRoute(dst net.IPNet) (has bool, err error) {
	err = c.use("look at routes", func(links *netlink.Handle) error {
		all, err := whole(func() ([]netlink.Route, error) { return links.RouteList(nil, netlink.FAMILY_ALL) })
		for _, r := range all {
			has = has || r.Dst != nil && r.Dst.String() == dst.String()
		}
		return err
	})
	return has, err
}

// Remove deletes an interface of the container.
func (c *Container) Remove(name string) error {
	return c.use("remove "+name, func(links *netlink.Handle) error {
		link, err := links.LinkByName(name)
		if err != nil {
			return err
		}
		return links.LinkDel(link)
	})
}

// Gone removes the container as a reboot does: its processes and its namespace with the
// interfaces. It waits until their other ends on the host have gone, too. While the host
// lives, Path leads to nothing, or at least to no namespace.
func (c *Container) Gone() error {
	var ends []int
	err := c.use("remove container", func(links *netlink.Handle) (err error) {
		if ends, err = c.otherEnds(); err != nil {
			return err
		}
		id, err := identity(c.space)
		if err != nil {
			return err
		}
		if err := kill(map[string]bool{id: true}); err != nil {
			return err
		}
		if c.host.calls != nil {
			err = c.host.do(func() error {
				return errors.Join(unix.Unmount(c.Path, unix.MNT_DETACH), os.Remove(c.Path))
			})
			_ = c.space.Close()
			c.space = nil
		} else {
			// The number stays taken, so that Path does not lead to somebody else's file.
			var null *os.File
			if null, err = os.Open(os.DevNull); err == nil {
				err = unix.Dup3(int(null.Fd()), int(c.space.Fd()), unix.O_CLOEXEC)
				_ = null.Close()
			}
		}
		links.Close()
		c.links = nil
		return err
	})
	if err != nil {
		return err
	}
	wait(func() bool { return !slices.ContainsFunc(ends, c.host.hasLink) }) // others may hold the namespace
	return nil
}

// otherEnds returns the indexes of the interfaces of the host that are pairs with those of the
// container.
func (c *Container) otherEnds() (ends []int, err error) {
	all, err := whole(c.links.LinkList)
	for _, l := range all {
		end, err := c.host.links.LinkByIndex(l.Attrs().ParentIndex)
		if err == nil && l.Type() == "veth" && end.Type() == "veth" && end.Attrs().ParentIndex == l.Attrs().Index {
			ends = append(ends, l.Attrs().ParentIndex)
		}
	}
	return ends, err
}

// hasLink reports whether the host has an interface of that index.
func (h *Host) hasLink(index int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	_, err := h.links.LinkByIndex(index)
	return err == nil
}
