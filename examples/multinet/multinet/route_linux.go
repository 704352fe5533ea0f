package multinet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
)

// moveDefaultRoute replaces the default routes of the container by those of the
// selections that have one, and changes the results in added accordingly. Paths of
// namespaces are paths in root.
func moveDefaultRoute(root plugin.Root, attachments []attachment, added []delegate.Attached) error {
	for i, a := range attachments {
		for _, gateway := range a.selection.DefaultRoute {
			gateway = gateway.Unmap()
			if err := routeVia(root, added[i], gateway); err != nil {
				return fmt.Errorf("default route of network %q (%s) via %s: %w", a.Network.Name(), added[i].IfName, gateway, err)
			}
			if err := reviseResults(added, i, gateway); err != nil {
				return fmt.Errorf("default route of network %q (%s) in the results: %w", a.Network.Name(), added[i].IfName, err)
			}
		}
	}
	return nil
}

// routeVia replaces the default routes of gateway's family in a's network namespace
// by one via gateway on a's interface.
func routeVia(root plugin.Root, a delegate.Attached, gateway netip.Addr) error {
	route := func(ns.NetNS) error { return replaceDefaultRoutes(a.IfName, gateway) }
	return root.With(a.NetNS, func(path string) error { return ns.WithNetNSPath(path, route) })
}

// dumps is how often listing the routes is tried if they change meanwhile.
const dumps = 10

// replaceDefaultRoutes replaces the default routes of gateway's family, in the current
// thread's namespace, by one via gateway on the interface. Routes of other tables than the
// main one, and of the kernel, stay.
func replaceDefaultRoutes(ifName string, gateway netip.Addr) error {
	link, err := netlink.LinkByName(ifName)
	if err != nil {
		return fmt.Errorf("find the interface: %w", err)
	}
	family, all := netlink.FAMILY_V4, &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	if gateway.Is6() {
		family, all = netlink.FAMILY_V6, &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	var routes []netlink.Route
	for range dumps {
		routes, err = netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN, Dst: all}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if r.Protocol == unix.RTPROT_KERNEL {
			continue
		}
		// Only what identifies the route: the kernel refuses some attributes that it lists.
		which := netlink.Route{Family: family, Dst: all, Table: r.Table, Priority: r.Priority, Protocol: r.Protocol, Type: r.Type, Scope: r.Scope, Tos: r.Tos}
		if err := netlink.RouteDel(&which); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove a route: %w", err)
		}
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: all, Gw: gateway.AsSlice()}); err != nil {
		return fmt.Errorf("add a route: %w", err)
	}
	return nil
}
