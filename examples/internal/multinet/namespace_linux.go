package multinet

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/ns"

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
	route := func(ns.NetNS) error { return replaceDefaultRoutes(a.IfName, gateway) }
	return inroot.With(root, a.NetNS, func(path string) error { return ns.WithNetNSPath(path, route) })
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
