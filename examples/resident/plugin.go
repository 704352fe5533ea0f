package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/status"
)

// A config is what the plugin gets on stdin.
type config struct {
	Addresses     []string       `json:"addresses"` // of the network
	Routes        []*types.Route `json:"routes"`
	RuntimeConfig struct {
		IPs []string `json:"ips"` // of this container, in place of addresses
	} `json:"runtimeConfig"`
	PrevResult map[string]any `json:"prevResult"`
}

// addresses is the plugin. It keeps no records: what gives an interface the
// addresses takes them from it.
func addresses() plugin.Plugin {
	nothing := func(context.Context, *plugin.Call) error { return nil }
	return plugin.Plugin{
		About: "CNI plugin resident",
		Add:   add, Check: check, Del: nothing, GC: nothing,
		Status: func(_ context.Context, c *plugin.Call) error {
			_, _, _, err := read(c)
			return status.NotReady(err)
		},
	}
}

// add prints prevResult with the addresses, or a result of these.
func add(_ context.Context, call *plugin.Call) error {
	c, r, ips, err := read(call)
	if err != nil {
		return err
	}
	r.IPs = append(r.IPs, ips...)
	r.Routes = append(r.Routes, c.Routes...)
	out, err := r.GetAsVersion(call.CNIVersion)
	if err != nil {
		return types.NewError(types.ErrIncompatibleCNIVersion, "resident: "+err.Error(), "")
	}
	return out.PrintTo(call.Stdout)
}

// check requires the addresses in prevResult.
func check(_ context.Context, call *plugin.Call) error {
	c, r, ips, err := read(call)
	if err != nil {
		return err
	}
	if c.PrevResult == nil {
		return invalid("CHECK without prevResult")
	}
	for _, want := range ips {
		if !slices.ContainsFunc(r.IPs, func(ip *types100.IPConfig) bool { return ip.Address.String() == want.Address.String() }) {
			return fmt.Errorf("resident: address %s is not there", want.Address.String())
		}
	}
	return nil
}

// read returns the configuration, the result that the addresses are added to, and the addresses.
func read(call *plugin.Call) (c config, r *types100.Result, ips []*types100.IPConfig, err error) {
	if err := json.Unmarshal(call.StdinData, &c); err != nil {
		return c, nil, nil, types.NewError(types.ErrDecodingFailure, "resident: configuration: "+err.Error(), "")
	}
	if ips, err = c.ips(); err == nil {
		r, err = c.previous(call.CNIVersion)
	}
	return c, r, ips, err
}

// ips are the addresses to give.
func (c *config) ips() (ips []*types100.IPConfig, err error) {
	list := c.Addresses
	if len(c.RuntimeConfig.IPs) > 0 {
		list = c.RuntimeConfig.IPs
	}
	if len(list) == 0 {
		return nil, invalid("no addresses")
	}
	for _, text := range list {
		ip, subnet, err := net.ParseCIDR(text)
		if err != nil {
			return nil, invalid("address %.60q is not one with the length of its prefix", text)
		}
		ips = append(ips, &types100.IPConfig{Address: net.IPNet{IP: ip, Mask: subnet.Mask}})
	}
	return ips, nil
}

// previous is the result that the addresses are added to.
func (c *config) previous(version string) (*types100.Result, error) {
	if c.PrevResult == nil {
		return &types100.Result{CNIVersion: types100.ImplementedSpecVersion}, nil
	}
	data, err := json.Marshal(c.PrevResult)
	var prev types.Result
	if err == nil {
		prev, err = create.Create(version, data)
	}
	var r *types100.Result
	if err == nil {
		r, err = types100.NewResultFromResult(prev)
	}
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "resident: prevResult: "+err.Error(), "")
	}
	return r, nil
}

func invalid(format string, args ...any) error {
	return types.NewError(types.ErrInvalidNetworkConfig, "resident: "+fmt.Sprintf(format, args...), "")
}
