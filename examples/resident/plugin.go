package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/status"
)

// A config is what the plugin gets on stdin.
type config struct {
	types.PluginConf
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
			_, err := decode(c.StdinData)
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
	out, err := r.GetAsVersion(c.CNIVersion)
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

// read returns the configuration, the result that the addresses are added to, and these.
func read(call *plugin.Call) (c config, r *types100.Result, ips []*types100.IPConfig, err error) {
	c, err = decode(call.StdinData)
	if err == nil {
		r, err = c.previous()
	}
	if err == nil {
		ips, err = c.ips()
	}
	return c, r, ips, err
}

func decode(stdin []byte) (c config, err error) {
	if err := json.Unmarshal(stdin, &c); err != nil {
		return c, types.NewError(types.ErrDecodingFailure, "resident: configuration: "+err.Error(), "")
	}
	if c.CNIVersion == "" {
		c.CNIVersion = "0.1.0" // SPEC section 1
	}
	if _, err := c.ips(); err != nil {
		return c, err
	}
	return c, nil
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
func (c *config) previous() (*types100.Result, error) {
	if c.RawPrevResult == nil {
		return &types100.Result{CNIVersion: types100.ImplementedSpecVersion}, nil
	}
	err := version.ParsePrevResult(&c.PluginConf)
	var r *types100.Result
	if err == nil {
		r, err = types100.NewResultFromResult(c.PrevResult)
	}
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "resident: prevResult: "+err.Error(), "")
	}
	if r == nil {
		return nil, errors.New("resident: no prevResult")
	}
	return r, nil
}

func invalid(format string, args ...any) error {
	return types.NewError(types.ErrInvalidNetworkConfig, "resident: "+fmt.Sprintf(format, args...), "")
}
