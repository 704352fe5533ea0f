package plugin

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
	Gateways []netip.Addr `json:"gateways"` // at most one of each family
	Here     bool         `json:"here"`     // the routes lead through this network
}

// withRoutes appends the step to each of as, the attachments to choices, if the pod has
// selected one with default-route. It cannot select two.
func (c *config) withRoutes(choices []choice, as []delegate.Attachment) error {
	chosen := slices.IndexFunc(choices, func(ch choice) bool { return len(ch.selection.DefaultRoute) > 0 })
	if chosen < 0 {
		return nil
	}
	for i, a := range as {
		one := []netconf.Network{a.Network}
		if err := c.call.Append(one, routeStep, route{choices[chosen].selection.DefaultRoute, i == chosen}); err != nil {
			return err
		}
		as[i].Network = one[0]
	}
	return nil
}

// addRoute is the ADD of the step. It changes the result as it changes the routes.
func addRoute(_ context.Context, c *plugin.Call) error {
	var result json.RawMessage
	err := c.Value("prevResult", &result)
	if err == nil {
		err = eachGateway(c, func(gateway netip.Addr, here bool) (err error) {
			if here {
				err = replaceDefaultRoutes(c.IfName, gateway)
			} else {
				err = removeOwnRoutes(c.IfName, gateway.Is6())
			}
			if err == nil {
				result, err = revise(result, gateway, here)
			}
			return err
		})
	}
	if err == nil {
		_, err = c.System.Stdout.Write(result)
	}
	return err
}

// checkRoute is the CHECK of the step.
func checkRoute(_ context.Context, c *plugin.Call) error {
	return eachGateway(c, func(gateway netip.Addr, here bool) error {
		if !here {
			return nil
		}
		return findRoute(c.IfName, gateway)
	})
}

// eachGateway calls do in the network namespace of the container.
func eachGateway(c *plugin.Call, do func(gateway netip.Addr, here bool) error) error {
	r, err := plugin.Config[route](c)
	for _, gateway := range r.Gateways {
		if err != nil {
			break
		}
		gateway = gateway.Unmap()
		if err = inNetNS(c, func() error { return do(gateway, r.Here) }); err != nil {
			err = fmt.Errorf("default route via %s: %w", gateway, err)
		}
	}
	return err
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
