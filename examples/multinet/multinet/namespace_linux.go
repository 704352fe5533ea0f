package multinet

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/ns"
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

// reviseResults removes the default routes of gateway's family from all results and
// adds the new one to the result of added[chosen]. It changes only routes of the main
// table, as routeVia does.
func reviseResults(added []delegate.Attached, chosen int, gateway netip.Addr) error {
	dst, family := netip.PrefixFrom(netip.IPv4Unspecified(), 0).String(), "ip4"
	if gateway.Is6() {
		dst, family = netip.PrefixFrom(netip.IPv6Unspecified(), 0).String(), "ip6"
	}
	for i := range added {
		var add map[string]string
		if i == chosen {
			add = map[string]string{"dst": dst, "gw": gateway.String()}
		}
		var v struct {
			CNIVersion string `json:"cniVersion"`
		}
		err := json.Unmarshal(added[i].Result, &v)
		if err == nil && (v.CNIVersion == "0.1.0" || v.CNIVersion == "0.2.0") {
			err = reviseOld(&added[i].Result, family, dst, add)
		} else if err == nil {
			err = reviseRoutes(&added[i].Result, dst, add)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// reviseOld is reviseRoutes for a result older than CNI 0.3.0, which has the routes of
// a family next to its address. Without an address it cannot have routes.
func reviseOld(result *json.RawMessage, family, dst string, add map[string]string) error {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(*result, &keys); err != nil {
		return err
	}
	of := keys[family]
	if of == nil || string(of) == "null" {
		return nil
	}
	if err := reviseRoutes(&of, dst, add); err != nil {
		return err
	}
	keys[family] = of
	revised, err := json.Marshal(keys)
	if err == nil {
		*result = revised
	}
	return err
}

// reviseRoutes removes the routes of the main table to dst from the "routes" of
// object. If add is not nil, it appends add.
func reviseRoutes(object *json.RawMessage, dst string, add map[string]string) error {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(*object, &keys); err != nil {
		return err
	}
	if keys == nil {
		return errors.New("a result of null")
	}
	var routes []json.RawMessage
	if keys["routes"] != nil {
		if err := json.Unmarshal(keys["routes"], &routes); err != nil {
			return err
		}
	}
	routes = slices.DeleteFunc(routes, func(r json.RawMessage) bool { return leadsTo(r, dst) })
	if add != nil {
		route, err := json.Marshal(add)
		if err != nil {
			return err
		}
		routes = append(routes, route)
	}
	if len(routes) == 0 && keys["routes"] == nil {
		return nil
	}
	var err error
	if keys["routes"], err = json.Marshal(routes); err != nil {
		return err
	}
	revised, err := json.Marshal(keys)
	if err == nil {
		*object = revised
	}
	return err
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
