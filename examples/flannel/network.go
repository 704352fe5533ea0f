package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"

	"github.com/metacni/metacni/examples/internal/program"
	"github.com/metacni/metacni/netconf"
)

// config is what every command needs of flannel's configuration.
type config struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Type       string `json:"type"`
	DataDir    string `json:"dataDir"`
}

// template is what only making a network needs: a DEL must not fail because it
// has been broken since.
type template struct {
	SubnetFile    string                     `json:"subnetFile"`
	Delegate      netconf.Plugin             `json:"delegate"`
	IPAM          map[string]json.RawMessage `json:"ipam"`
	RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig"`
}

// template reads the rest of the configuration, and refuses what flannel alone
// may say.
func (c *config) template(stdin []byte) (template, error) {
	t, err := netconf.Decode[template](stdin)
	if err != nil {
		return template{}, err
	}
	if t.Delegate.IsZero() {
		if t.Delegate, err = netconf.ParsePlugin([]byte("{}")); err != nil {
			return template{}, err
		}
	}
	for _, key := range []string{"name", "ipam"} {
		if t.Delegate.Has(key) {
			return template{}, program.Invalid(c.Name, "delegate."+key, errors.New("not to be set here"))
		}
	}
	t.SubnetFile = cmp.Or(t.SubnetFile, defaultSubnetFile)
	return t, nil
}

// network completes the delegated plugin: its user's values win, except for
// the name and the address management, which are flannel's.
func (c *config) network(t template, s subnet) (netconf.Network, error) {
	ipam, err := addresses(t.IPAM, s)
	if err != nil {
		return netconf.Network{}, fmt.Errorf("network %q: %w", c.Name, err)
	}
	edits := []netconf.Edit{
		netconf.Set("name", c.Name),
		netconf.Default("cniVersion", c.CNIVersion),
		netconf.Default("type", "bridge"),
		netconf.Default("ipMasq", !s.ipMasq),
		netconf.Default("mtu", s.mtu),
		netconf.Set("ipam", ipam),
	}
	if !t.Delegate.Has("type") || t.Delegate.Type() == "bridge" {
		edits = append(edits, netconf.Default("isGateway", true))
	}
	if t.RuntimeConfig != nil {
		edits = append(edits, netconf.Set("runtimeConfig", t.RuntimeConfig))
	}
	plugin, err := t.Delegate.Edit(edits...)
	if err != nil {
		return netconf.Network{}, fmt.Errorf("network %q: %w", c.Name, err)
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
