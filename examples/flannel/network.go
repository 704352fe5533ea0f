package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
)

// config is flannel's configuration, without the keys that every plugin has.
type config struct {
	SubnetFile    string                     `json:"subnetFile"`
	Delegate      netconf.Plugin             `json:"delegate"`
	IPAM          map[string]json.RawMessage `json:"ipam"`
	RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig"`
}

// network returns the delegate's network, made from the configuration and from
// what subnet.env says now. The user's values win, except for the name and the
// address ranges.
func network(c *plugin.Call) (netconf.Network, error) {
	conf, err := plugin.Config[config](c)
	if err != nil {
		return netconf.Network{}, err
	}
	for _, key := range []string{"name", "ipam"} {
		if conf.Delegate.Has(key) {
			return netconf.Network{}, c.Invalid("delegate."+key, errors.New("must not be set by the user"))
		}
	}
	if conf.Delegate.Has("type") && conf.Delegate.Type() == "" {
		return netconf.Network{}, c.Invalid("delegate.type", errors.New("empty: leave it out for bridge"))
	}
	s, err := readSubnet(cmp.Or(conf.SubnetFile, defaultSubnetFile))
	if err != nil {
		return netconf.Network{}, err
	}
	edits := []netconf.Edit{
		netconf.Default("type", "bridge"),
		netconf.Default("ipMasq", !s.ipMasq),
		netconf.Default("mtu", s.mtu),
		netconf.Set("ipam", conf.IPAM),
		netconf.In("ipam", netconf.Default("type", "host-local"), netconf.Remove("subnet"), s.setRanges, s.addRoutes),
	}
	if !conf.Delegate.Has("type") || conf.Delegate.Type() == "bridge" {
		edits = append(edits, netconf.Default("isGateway", true))
	}
	if conf.RuntimeConfig != nil {
		edits = append(edits, netconf.Set("runtimeConfig", conf.RuntimeConfig))
	}
	delegate, err := conf.Delegate.Edit(edits...)
	if err != nil {
		return netconf.Network{}, fmt.Errorf("network %q: %w", c.Name, err)
	}
	return c.Complete(netconf.Single(delegate))
}

// setRanges is a [netconf.Edit] of "ipam": addresses come from this host's
// subnets.
func (s subnet) setRanges(ipam map[string]json.RawMessage) error {
	type object map[string]netip.Prefix
	var ranges [][]object
	for _, p := range s.subnets {
		ranges = append(ranges, []object{{"subnet": p}})
	}
	return netconf.Set("ranges", ranges)(ipam)
}

// addRoutes is a [netconf.Edit] of "ipam". It appends a route to each network of
// the cluster for which the user gives none.
func (s subnet) addRoutes(ipam map[string]json.RawMessage) error {
	text, _ := json.Marshal(ipam) // cannot fail: it has been read
	conf, err := netconf.Decode[struct {
		Routes []json.RawMessage `json:"routes"`
	}](text)
	if err != nil {
		return err
	}
	routes := conf.Routes
	given := make(map[netip.Prefix]bool)
	for i, r := range routes {
		var route struct {
			Dst netip.Prefix `json:"dst"`
		}
		if err := json.Unmarshal(r, &route); err != nil {
			return &netconf.Error{Kind: netconf.ErrDecode, Key: fmt.Sprintf("routes[%d]", i), Err: err}
		}
		given[route.Dst.Masked()] = true
	}
	for _, n := range s.networks {
		if !given[n] {
			routes = append(routes, fmt.Appendf(nil, `{"dst":%q}`, n))
		}
	}
	return netconf.Set("routes", routes)(ipam)
}
