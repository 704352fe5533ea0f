package multinet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
)

// moveDefaultRoute replaces the default routes of the container by those of the
// selections that have some, and changes the results in added accordingly. Paths of
// namespaces are paths in root.
func moveDefaultRoute(root plugin.Root, choices []choice, added []delegate.Attached) error {
	for i, ch := range choices {
		for _, gateway := range ch.selection.DefaultRoute {
			gateway = gateway.Unmap()
			err := routeVia(root, added[i], gateway)
			if err == nil {
				err = reviseResults(added, i, gateway)
			}
			if err != nil {
				return fmt.Errorf("default route of network %q (%s) via %s: %w", added[i].Network.Name(), added[i].IfName, gateway, err)
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

// replaceDefaultRoutes replaces the default routes of gateway's family in the main table, in
// the current thread's namespace, by one via gateway on the interface. Routes of the kernel stay.
func replaceDefaultRoutes(ifName string, gateway netip.Addr) error {
	link, err := netlink.LinkByName(ifName)
	if err != nil {
		return fmt.Errorf("find the interface: %w", err)
	}
	family, everywhere := netlink.FAMILY_V4, &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	if gateway.Is6() {
		family, everywhere = netlink.FAMILY_V6, &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	routes, err := netlink.RouteList(nil, family)
	for try := 1; errors.Is(err, netlink.ErrDumpInterrupted) && try < dumps; try++ {
		routes, err = netlink.RouteList(nil, family)
	}
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst != nil && r.Dst.String() != everywhere.String() || r.Protocol == unix.RTPROT_KERNEL {
			continue
		}
		// Only what identifies the route: the kernel refuses some attributes that it lists.
		old := &netlink.Route{Dst: everywhere, Priority: r.Priority, Protocol: r.Protocol, Type: r.Type, Scope: r.Scope, Tos: r.Tos}
		if err := netlink.RouteDel(old); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove a route: %w", err)
		}
	}
	if err := netlink.RouteAdd(&netlink.Route{Dst: everywhere, Gw: gateway.AsSlice(), LinkIndex: link.Attrs().Index}); err != nil {
		return fmt.Errorf("add a route: %w", err)
	}
	return nil
}

// reviseResults removes the default routes of gateway's family from all results and
// adds the new one to the result of added[chosen]. It changes only routes of the main
// table, as routeVia does.
func reviseResults(added []delegate.Attached, chosen int, gateway netip.Addr) error {
	dst, family := "0.0.0.0/0", "ip4"
	if gateway.Is6() {
		dst, family = "::/0", "ip6"
	}
	for i := range added {
		var add map[string]string
		if i == chosen {
			add = map[string]string{"dst": dst, "gw": gateway.String()}
		}
		var err error
		if added[i].Result, err = revise(added[i].Result, family, dst, add); err != nil {
			return fmt.Errorf("revise the results: %w", err)
		}
	}
	return nil
}

// revise returns a result without the routes of the main table to dst and, if add is not nil,
// with that route. The result was decoded in its version when the plugin had printed it. One older
// than CNI 0.3.0 has the routes of a family next to its address; without an address it cannot have
// routes.
func revise(result json.RawMessage, family, dst string, add map[string]string) (json.RawMessage, error) {
	var keys map[string]any
	decoder := json.NewDecoder(bytes.NewReader(result))
	decoder.UseNumber()
	if err := decoder.Decode(&keys); err != nil {
		return nil, err
	}
	holder := keys
	if keys["cniVersion"] == "0.1.0" || keys["cniVersion"] == "0.2.0" {
		holder, _ = keys[family].(map[string]any)
	}
	routes, some := holder["routes"].([]any)
	if holder == nil || !some && add == nil {
		return result, nil
	}
	routes = slices.DeleteFunc(routes, func(route any) bool { return leadsTo(route, dst) })
	if add != nil {
		routes = append(routes, add)
	}
	holder["routes"] = routes
	return json.Marshal(keys)
}

// leadsTo reports whether route is one of the main table to dst.
func leadsTo(route any, dst string) bool {
	keys, _ := route.(map[string]any)
	switch keys["table"] {
	case nil, json.Number("0"), json.Number("254"):
	default:
		return false
	}
	text, _ := keys["dst"].(string)
	p, err := netip.ParsePrefix(text)
	return err == nil && p.Masked().String() == dst
}
