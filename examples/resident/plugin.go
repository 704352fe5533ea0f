package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

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
}

// addresses is the plugin. It keeps no records: what gives an interface the
// addresses takes them from it.
func addresses() plugin.Plugin {
	nothing := func(context.Context, *plugin.Call) error { return nil }
	return plugin.Plugin{
		About: "CNI plugin resident",
		Add:   add, Check: check, Del: nothing, GC: nothing,
		Status: func(_ context.Context, c *plugin.Call) error {
			_, _, err := read(c)
			return status.NotReady(err)
		},
	}
}

// add prints prevResult with the addresses, or a result of these.
func add(_ context.Context, call *plugin.Call) error {
	c, ips, err := read(call)
	if err != nil {
		return err
	}
	r, err := call.PrevResult()
	if err != nil {
		return err
	}
	if r == nil {
		r = &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	}
	r.IPs = append(r.IPs, ips...)
	r.Routes = append(r.Routes, c.Routes...)
	return call.Print(r)
}

// check requires the addresses in prevResult.
func check(_ context.Context, call *plugin.Call) error {
	_, ips, err := read(call)
	if err != nil {
		return err
	}
	r, err := call.PrevResult()
	if err != nil {
		return err
	}
	if r == nil {
		return invalid("CHECK without prevResult")
	}
	for _, want := range ips {
		if !slices.ContainsFunc(r.IPs, func(ip *types100.IPConfig) bool { return ip.Address.String() == want.Address.String() }) {
			return fmt.Errorf("resident: address %s is not there", want.Address.String())
		}
	}
	return nil
}

// read returns the configuration and the addresses.
func read(call *plugin.Call) (c config, ips []*types100.IPConfig, err error) {
	if err := json.Unmarshal(call.Config, &c); err != nil {
		return c, nil, types.NewError(types.ErrDecodingFailure, "resident: configuration: "+err.Error(), "")
	}
	ips, err = c.ips()
	return c, ips, err
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

func invalid(format string, args ...any) error {
	return types.NewError(types.ErrInvalidNetworkConfig, "resident: "+fmt.Sprintf(format, args...), "")
}
