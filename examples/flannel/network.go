package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
)

// config is flannel's configuration, beside what every one has.
type config struct {
	SubnetFile    string                     `json:"subnetFile"`
	Delegate      netconf.Plugin             `json:"delegate"`
	IPAM          map[string]json.RawMessage `json:"ipam"`
	RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig"`
}

// network is the delegate's, as of now.
func network(c *plugin.Call) (netconf.Network, error) {
	conf, err := plugin.Config[config](c)
	if err == nil && conf.Delegate.IsZero() {
		conf.Delegate, err = netconf.ParsePlugin([]byte("{}"))
	}
	if err != nil {
		return netconf.Network{}, err
	}
	for _, key := range []string{"name", "ipam"} {
		if conf.Delegate.Has(key) {
			return netconf.Network{}, c.Invalid("delegate."+key, errors.New("must not be set by the user"))
		}
	}
	s, err := readSubnet(cmp.Or(conf.SubnetFile, defaultSubnetFile))
	if err != nil {
		return netconf.Network{}, err
	}
	n, err := conf.complete(c, s)
	if err != nil {
		return n, fmt.Errorf("network %q: %w", c.Name, err)
	}
	return n, nil
}

// complete completes the delegated plugin: its user's values win, except for the
// name and the address management, which are flannel's.
func (conf *config) complete(c *plugin.Call, s subnet) (netconf.Network, error) {
	ipam, err := addresses(conf.IPAM, s)
	if err != nil {
		return netconf.Network{}, err
	}
	edits := []netconf.Edit{
		netconf.Set("name", c.Name),
		netconf.Default("cniVersion", c.CNIVersion),
		netconf.Default("type", "bridge"),
		netconf.Default("ipMasq", !s.ipMasq),
		netconf.Default("mtu", s.mtu),
		netconf.Set("ipam", ipam),
	}
	if !conf.Delegate.Has("type") || conf.Delegate.Type() == "bridge" {
		edits = append(edits, netconf.Default("isGateway", true))
	}
	if conf.RuntimeConfig != nil {
		edits = append(edits, netconf.Set("runtimeConfig", conf.RuntimeConfig))
	}
	p, err := conf.Delegate.Edit(edits...)
	return netconf.Single(p), err
}

// addresses is the delegate's address management: this host's subnets, the
// user's routes, and one route to each network of the cluster.
func addresses(user map[string]json.RawMessage, s subnet) (map[string]json.RawMessage, error) {
	type object map[string]string
	var ranges [][]object
	for _, p := range s.subnets {
		ranges = append(ranges, []object{{"subnet": p.String()}})
	}
	routes := []json.RawMessage{}
	if user["routes"] != nil {
		if err := json.Unmarshal(user["routes"], &routes); err != nil {
			return nil, garbled("ipam.routes", err)
		}
	}
	there := make(map[netip.Prefix]bool)
	for i, r := range routes {
		var route struct {
			Dst netip.Prefix `json:"dst"`
		}
		if err := json.Unmarshal(r, &route); err != nil {
			return nil, garbled(fmt.Sprintf("ipam.routes[%d]", i), err)
		}
		there[route.Dst.Masked()] = true
	}
	for _, n := range s.networks {
		if !there[n] {
			routes = append(routes, json.RawMessage(`{"dst":"`+n.String()+`"}`))
		}
	}
	ipam := make(map[string]json.RawMessage)
	maps.Copy(ipam, user)
	return ipam, edit(ipam, netconf.Default("type", "host-local"), netconf.Remove("subnet"), netconf.Set("ranges", ranges), netconf.Set("routes", routes))
}

func garbled(key string, err error) error {
	return &netconf.Error{Kind: netconf.ErrDecode, Key: key, Err: err}
}

func edit(keys map[string]json.RawMessage, edits ...netconf.Edit) error {
	for _, e := range edits {
		if err := e(keys); err != nil {
			return err
		}
	}
	return nil
}
