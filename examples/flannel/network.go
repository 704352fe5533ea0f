package main

import (
	"encoding/json"
	"net/netip"

	"github.com/metacni/metacni/netconf"
)

// config is flannel's configuration.
type config struct {
	CNIVersion    string                     `json:"cniVersion"`
	Name          string                     `json:"name"`
	Type          string                     `json:"type"`
	SubnetFile    string                     `json:"subnetFile"`
	DataDir       string                     `json:"dataDir"`
	RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig"`
}

// template is what only making a network needs: a DEL works without.
type template struct {
	Delegate netconf.Plugin             `json:"delegate"`
	IPAM     map[string]json.RawMessage `json:"ipam"`
}

// network completes the delegated plugin: its user's values win, except for
// the name and the address management, which are flannel's.
func (c *config) network(stdin []byte, s subnet) (netconf.Network, error) {
	t, err := netconf.Decode[template](stdin)
	if err != nil {
		return netconf.Network{}, err
	}
	ipam, err := addresses(t.IPAM, s)
	if err != nil {
		return netconf.Network{}, &netconf.Error{Kind: netconf.ErrDecode, Network: c.Name, Key: "ipam.routes", Err: err}
	}
	plugin := t.Delegate
	if plugin.IsZero() {
		if plugin, err = netconf.ParsePlugin([]byte("{}")); err != nil {
			return netconf.Network{}, err
		}
	}
	edits := []netconf.Edit{
		netconf.Forbid("name", "ipam"),
		netconf.Set("name", c.Name),
		netconf.Set("cniVersion", c.CNIVersion),
		netconf.Default("type", "bridge"),
		netconf.Default("ipMasq", !s.ipMasq),
		netconf.Default("mtu", s.mtu),
		netconf.Set("ipam", ipam),
	}
	if t := plugin.Type(); t == "" || t == "bridge" {
		edits = append(edits, netconf.Default("isGateway", true))
	}
	if c.RuntimeConfig != nil {
		edits = append(edits, netconf.Set("runtimeConfig", c.RuntimeConfig))
	}
	plugin, err = plugin.Edit(edits...)
	if err != nil {
		return netconf.Network{}, err
	}
	return netconf.Single(plugin), nil
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
			return nil, err
		}
	}
	there := make(map[netip.Prefix]bool)
	for _, r := range routes {
		var route struct {
			Dst netip.Prefix `json:"dst"`
		}
		if err := json.Unmarshal(r, &route); err != nil {
			return nil, err
		}
		there[route.Dst.Masked()] = true
	}
	for _, n := range s.networks {
		if !there[n] {
			routes = append(routes, json.RawMessage(`{"dst":"`+n.String()+`"}`))
		}
	}
	ipam := make(map[string]json.RawMessage)
	for key, value := range user {
		ipam[key] = value
	}
	return ipam, edit(ipam, netconf.Default("type", "host-local"), netconf.Remove("subnet"), netconf.Set("ranges", ranges), netconf.Set("routes", routes))
}

func edit(keys map[string]json.RawMessage, edits ...netconf.Edit) error {
	for _, e := range edits {
		if err := e(keys); err != nil {
			return err
		}
	}
	return nil
}
