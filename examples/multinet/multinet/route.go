package multinet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
)

// routeStep is the name of the step that moves the default routes of a container to the
// network that its pod has selected with default-route. Every network of the container has
// it, because those after that network may add default routes too.
const routeStep = "default-route"

// A route is the configuration of the step.
type route struct {
	Via       []netip.Addr `json:"via,omitempty"`       // the gateways of the network
	Elsewhere []netip.Addr `json:"elsewhere,omitempty"` // those of other networks: it has no default route of their family
}

// withRoutes appends the step to each of as, the attachments to choices, if a pod has selected
// one with default-route. Of several for one family the last counts.
func (c *config) withRoutes(choices []choice, as []delegate.Attachment) error {
	routes := make([]route, len(choices))
	for _, six := range []bool{false, true} {
		of, last := -1, netip.Addr{}
		for i, ch := range choices {
			for _, gateway := range ch.selection.DefaultRoute {
				if gateway = gateway.Unmap(); gateway.Is6() == six {
					of, last = i, gateway
				}
			}
		}
		for i := range routes {
			switch {
			case of == i:
				routes[i].Via = append(routes[i].Via, last)
			case of >= 0:
				routes[i].Elsewhere = append(routes[i].Elsewhere, last)
			}
		}
	}
	for i, r := range routes {
		if r.Via == nil && r.Elsewhere == nil {
			continue
		}
		nets, err := c.call.Append([]netconf.Network{as[i].Network}, routeStep, r)
		if err != nil {
			return err
		}
		as[i].Network = nets[0]
	}
	return nil
}

// addRoute is the ADD of the step. It changes the result as it changes the routes.
func addRoute(_ context.Context, c *plugin.Call) error {
	r, result, err := readRoute(c)
	if err != nil {
		return err
	}
	fail := func(gateway netip.Addr, err error) error {
		return fmt.Errorf("default route via %s: %w", gateway, err)
	}
	for _, gateway := range r.Elsewhere {
		if err := inNetNS(c, func() error { return removeOwnRoutes(c.IfName, gateway.Is6()) }); err != nil {
			return fail(gateway, err)
		}
		if result, err = revise(result, gateway, false); err != nil {
			return fail(gateway, err)
		}
	}
	for _, gateway := range r.Via {
		if err := inNetNS(c, func() error { return replaceDefaultRoutes(c.IfName, gateway) }); err != nil {
			return fail(gateway, err)
		}
		if result, err = revise(result, gateway, true); err != nil {
			return fail(gateway, err)
		}
	}
	_, err = c.Stdout.Write(result)
	return err
}

// checkRoute is the CHECK of the step.
func checkRoute(_ context.Context, c *plugin.Call) error {
	r, _, err := readRoute(c)
	for _, gateway := range r.Via {
		if err != nil {
			break
		}
		err = inNetNS(c, func() error { return findRoute(c.IfName, gateway) })
	}
	return err
}

func readRoute(c *plugin.Call) (r route, prevResult json.RawMessage, err error) {
	if r, err = plugin.Config[route](c); err == nil {
		err = c.Value("prevResult", &prevResult)
	}
	return r, prevResult, err
}

// revise returns a result without the default routes of gateway's family in the main table
// and, if to is true, with one via gateway. The result was decoded in its version when the
// plugin had printed it. One older than CNI 0.3.0 has the routes of a family next to its
// address; without an address it cannot have routes.
func revise(result json.RawMessage, gateway netip.Addr, to bool) (json.RawMessage, error) {
	dst, family := "0.0.0.0/0", "ip4"
	if gateway.Is6() {
		dst, family = "::/0", "ip6"
	}
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
	if holder == nil || !some && !to {
		return result, nil
	}
	routes = slices.DeleteFunc(routes, func(route any) bool { return leadsTo(route, dst) })
	if to {
		routes = append(routes, map[string]string{"dst": dst, "gw": gateway.String()})
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
