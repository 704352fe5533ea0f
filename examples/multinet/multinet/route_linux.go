package multinet

import (
	"encoding/json"
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
		revised, err := revise(added[i].Result, family, dst, add)
		if err != nil {
			return err
		}
		added[i].Result = revised
	}
	return nil
}

// revise returns a result without the routes of the main table to dst and, if add is not nil,
// with that route. A result older than CNI 0.3.0 has the routes of a family next to its
// address; without an address it cannot have routes.
func revise(result json.RawMessage, family, dst string, add map[string]string) (json.RawMessage, error) {
	var keys map[string]json.RawMessage
	var v struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := errors.Join(json.Unmarshal(result, &keys), json.Unmarshal(result, &v)); err != nil {
		return nil, err
	}
	if keys == nil {
		return nil, errors.New("a result of null")
	}
	revised, key, err := json.RawMessage(nil), "routes", error(nil)
	switch {
	case v.CNIVersion != "0.1.0" && v.CNIVersion != "0.2.0":
		revised, err = reviseRoutes(keys[key], dst, add)
	case keys[family] != nil && string(keys[family]) != "null":
		key = family
		revised, err = revise(keys[key], "", dst, add)
	}
	if err != nil || revised == nil {
		return result, err
	}
	keys[key] = revised
	return json.Marshal(keys)
}

// reviseRoutes is revise for a list of routes. No list stays none if there is nothing to add.
func reviseRoutes(list json.RawMessage, dst string, add map[string]string) (json.RawMessage, error) {
	var routes []any
	var all []json.RawMessage
	if list != nil {
		if err := json.Unmarshal(list, &all); err != nil {
			return nil, err
		}
	}
	for _, r := range all {
		if !leadsTo(r, dst) {
			routes = append(routes, r)
		}
	}
	if add != nil {
		routes = append(routes, add)
	}
	if routes == nil && list == nil {
		return nil, nil
	}
	return json.Marshal(append([]any{}, routes...))
}

// leadsTo reports whether route is one of the main table to dst.
func leadsTo(route json.RawMessage, dst string) bool {
	var r struct {
		Dst   string `json:"dst"`
		Table int    `json:"table"`
	}
	if json.Unmarshal(route, &r) != nil || r.Table != unix.RT_TABLE_UNSPEC && r.Table != unix.RT_TABLE_MAIN {
		return false
	}
	p, err := netip.ParsePrefix(r.Dst)
	return err == nil && p.Masked().String() == dst
}
