package status

import (
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	types020 "github.com/containernetworking/cni/pkg/types/020"
	types040 "github.com/containernetworking/cni/pkg/types/040"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// A result is what Networks needs of a result of any version.
type result struct {
	interfaceList   []*types100.Interface
	ips             []ipConfig
	defaultGateways []net.IP
	dns             types.DNS
}

type ipConfig struct {
	index   *int // into interfaceList, unchecked
	address net.IPNet
	gateway net.IP
}

// read takes r by what it is, not by the version it claims: the converters of
// package types panic where the two differ, and GetAsVersion writes to results
// that claim none.
func read(r types.Result) (result, error) {
	switch r := r.(type) {
	case nil:
		return result{}, errNoResult
	case *types100.Result:
		if r == nil {
			return result{}, errNoResult
		}
		return read100(r), nil
	case *types040.Result:
		if r == nil {
			return result{}, errNoResult
		}
		return read040(r), nil
	case *types020.Result:
		if r == nil {
			return result{}, errNoResult
		}
		return read020(r), nil
	}
	// Somebody's own kind of result can turn itself into one of these.
	c, err := r.GetAsVersion(types100.ImplementedSpecVersion)
	if err != nil {
		return result{}, fmt.Errorf("result of version %q: %w", r.Version(), err)
	}
	if c, ok := c.(*types100.Result); ok && c != nil {
		return read100(c), nil
	}
	return result{}, fmt.Errorf("result of version %q is of the unknown type %T", r.Version(), r)
}

func read100(r *types100.Result) result {
	res := result{interfaceList: r.Interfaces, dns: r.DNS}
	for _, ip := range r.IPs {
		if ip != nil {
			res.ips = append(res.ips, ipConfig{index: ip.Interface, address: ip.Address, gateway: ip.Gateway})
		}
	}
	for _, rt := range r.Routes {
		res.addRoute(rt)
	}
	return res
}

func read040(r *types040.Result) result {
	res := result{dns: r.DNS}
	for _, ifc := range r.Interfaces {
		var to *types100.Interface
		if ifc != nil {
			to = &types100.Interface{Name: ifc.Name, Mac: ifc.Mac, Sandbox: ifc.Sandbox}
		}
		res.interfaceList = append(res.interfaceList, to)
	}
	for _, ip := range r.IPs {
		if ip != nil {
			res.ips = append(res.ips, ipConfig{index: ip.Interface, address: ip.Address, gateway: ip.Gateway})
		}
	}
	for _, rt := range r.Routes {
		res.addRoute(rt)
	}
	return res
}

func read020(r *types020.Result) result {
	res := result{dns: r.DNS}
	for _, ip := range []*types020.IPConfig{r.IP4, r.IP6} {
		if ip == nil {
			continue
		}
		res.ips = append(res.ips, ipConfig{address: ip.IP, gateway: ip.Gateway})
		for i := range ip.Routes {
			res.addRoute(&ip.Routes[i])
		}
	}
	return res
}

// addRoute notes the gateway of a default route.
func (r *result) addRoute(rt *types.Route) {
	if rt == nil || len(rt.GW) == 0 {
		return
	}
	ones, bits := rt.Dst.Mask.Size()
	everywhere := ones == 0 && bits != 0 && rt.Dst.IP.IsUnspecified()
	if everywhere || rt.Dst.IP == nil && rt.Dst.Mask == nil {
		r.defaultGateways = append(r.defaultGateways, rt.GW)
	}
}
