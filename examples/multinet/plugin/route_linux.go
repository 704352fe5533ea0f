package plugin

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/plugin"
)

// inNetNS calls do in the network namespace of the container.
func inNetNS(c *plugin.Call, do func() error) error {
	return c.System.Root.With(c.NetNS, func(path string) error {
		return ns.WithNetNSPath(path, func(ns.NetNS) error { return do() })
	})
}

// dumps is how often listing the routes is tried if they change meanwhile.
const dumps = 10

// everywhere is the destination of default routes.
func everywhere(six bool) *net.IPNet {
	if six {
		return &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	return &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
}

// defaultRoutes returns the default routes of a family in the main table of the current
// thread's namespace, without those of the kernel, and the index of the interface.
func defaultRoutes(ifName string, six bool) (routes []netlink.Route, index int, err error) {
	link, err := netlink.LinkByName(ifName)
	if err != nil {
		return nil, 0, fmt.Errorf("find the interface %q: %w", ifName, err)
	}
	family := netlink.FAMILY_V4
	if six {
		family = netlink.FAMILY_V6
	}
	routes, err = netlink.RouteList(nil, family)
	for try := 1; errors.Is(err, netlink.ErrDumpInterrupted) && try < dumps; try++ {
		routes, err = netlink.RouteList(nil, family)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("list routes: %w", err)
	}
	return slices.DeleteFunc(routes, func(r netlink.Route) bool {
		return r.Dst != nil && r.Dst.String() != everywhere(six).String() || r.Protocol == unix.RTPROT_KERNEL
	}), link.Attrs().Index, nil
}

// replaceDefaultRoutes replaces the default routes of gateway's family by one via gateway on
// the interface.
func replaceDefaultRoutes(ifName string, gateway netip.Addr) error {
	routes, index, err := defaultRoutes(ifName, gateway.Is6())
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		err = fmt.Errorf("its network has made no interface (select another one with default-route): %w", err)
	}
	if err != nil {
		return err
	}
	for _, r := range routes {
		if err := removeRoute(r, gateway.Is6()); err != nil {
			return err
		}
	}
	// Another network that is attached at the same time may have added one since.
	if err := netlink.RouteReplace(&netlink.Route{Dst: everywhere(gateway.Is6()), Gw: gateway.AsSlice(), LinkIndex: index}); err != nil {
		return fmt.Errorf("add a route: %w", err)
	}
	return nil
}

// removeOwnRoutes removes the default routes of a family that lead through the interface, if
// there is one: some networks, such as that of istio-cni, make none. Of a route with several hops
// the others stay.
func removeOwnRoutes(ifName string, six bool) error {
	routes, index, err := defaultRoutes(ifName, six)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, r := range routes {
		others := slices.DeleteFunc(slices.Clone(r.MultiPath), func(hop *netlink.NexthopInfo) bool { return hop.LinkIndex == index })
		switch {
		case r.MultiPath == nil && r.LinkIndex != index || len(r.MultiPath) > 0 && len(others) == len(r.MultiPath):
		case len(others) > 0:
			r.Dst, r.MultiPath = everywhere(six), others
			if err := netlink.RouteReplace(&r); err != nil {
				return fmt.Errorf("remove a hop of a route: %w", err)
			}
		default:
			if err := removeRoute(r, six); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeRoute removes r, a default route.
func removeRoute(r netlink.Route, six bool) error {
	// Only what identifies the route: the kernel refuses some attributes that it lists.
	old := &netlink.Route{Dst: everywhere(six), LinkIndex: r.LinkIndex, Priority: r.Priority, Protocol: r.Protocol, Type: r.Type, Scope: r.Scope, Tos: r.Tos}
	if err := netlink.RouteDel(old); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("remove a route: %w", err)
	}
	return nil
}

// findRoute fails if there is no default route via gateway on the interface.
func findRoute(ifName string, gateway netip.Addr) error {
	routes, index, err := defaultRoutes(ifName, gateway.Is6())
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.LinkIndex == index && r.Gw.Equal(gateway.AsSlice()) }) {
		return fmt.Errorf("there is no default route via %s on %s", gateway, ifName)
	}
	return nil
}
