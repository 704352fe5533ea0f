package multinet

import (
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
	"github.com/metacni/metacni/internal/inroot"
)

// moveDefaultRoute makes the default routes of the container lead through the
// network that asked for them, and changes the results accordingly. It does
// nothing where none did. Paths of namespaces are looked at in root.
func moveDefaultRoute(root string, wanted []wanted, added []delegate.Attached) error {
	for i, w := range wanted {
		for _, gateway := range w.defaultRoute {
			gateway = gateway.Unmap()
			if err := routeVia(root, added[i], gateway); err != nil {
				return fmt.Errorf("default route of network %q (%s) via %s: %w", w.network.Name(), added[i].IfName, gateway, err)
			}
			if err := reviseResults(added, i, gateway); err != nil {
				return fmt.Errorf("default route of network %q (%s) in the results: %w", w.network.Name(), added[i].IfName, err)
			}
		}
	}
	return nil
}

// routeVia replaces the default routes of gateway's family in the container's
// namespace by one via gateway on a's interface.
func routeVia(root string, a delegate.Attached, gateway netip.Addr) error {
	route := func(ns.NetNS) error {
		link, err := netlink.LinkByName(a.IfName)
		if err != nil {
			return err
		}
		family := netlink.FAMILY_V4
		if gateway.Is6() {
			family = netlink.FAMILY_V6
		}
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return err
		}
		for _, r := range routes {
			// A default route has no destination or one of no bits, as the
			// version of netlink has it.
			if ones, _ := maskSize(r.Dst); ones > 0 || r.Protocol == unix.RTPROT_KERNEL {
				continue
			}
			if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.IP(gateway.AsSlice())})
	}
	return inroot.With(root, a.NetNS, func(path string) error { return ns.WithNetNSPath(path, route) })
}

func maskSize(n *net.IPNet) (ones, bits int) {
	if n == nil {
		return 0, 0
	}
	return n.Mask.Size()
}

// reviseResults takes the default routes of gateway's family out of all
// results and puts the new one into that of added[chosen]. Results older than
// CNI 0.3.0 have no place for it and stay as they are.
func reviseResults(added []delegate.Attached, chosen int, gateway netip.Addr) error {
	dst := netip.PrefixFrom(netip.IPv4Unspecified(), 0).String()
	if gateway.Is6() {
		dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0).String()
	}
	for i := range added {
		var keys map[string]json.RawMessage
		if err := json.Unmarshal(added[i].Result, &keys); err != nil {
			return err
		}
		if keys["ip4"] != nil || keys["ip6"] != nil {
			continue
		}
		var routes []json.RawMessage
		if keys["routes"] != nil {
			if err := json.Unmarshal(keys["routes"], &routes); err != nil {
				return err
			}
		}
		routes = slices.DeleteFunc(routes, func(r json.RawMessage) bool { return leadsTo(r, dst) })
		if i == chosen {
			route, err := json.Marshal(map[string]string{"dst": dst, "gw": gateway.String()})
			if err != nil {
				return err
			}
			routes = append(routes, route)
		}
		if len(routes) == 0 && keys["routes"] == nil {
			continue
		}
		var err error
		if keys["routes"], err = json.Marshal(routes); err != nil {
			return err
		}
		if added[i].Result, err = json.Marshal(keys); err != nil {
			return err
		}
	}
	return nil
}

func leadsTo(route json.RawMessage, dst string) bool {
	var r struct {
		Dst string `json:"dst"`
	}
	if json.Unmarshal(route, &r) != nil {
		return false
	}
	p, err := netip.ParsePrefix(r.Dst)
	return err == nil && p.Masked().String() == dst
}
