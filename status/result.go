package status

import (
	"errors"
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	types020 "github.com/containernetworking/cni/pkg/types/020"
	types040 "github.com/containernetworking/cni/pkg/types/040"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// read returns r in the newest form, with what Networks needs. It takes r by what it is,
// not by the version it claims: the converters of package types panic where the two
// differ, and GetAsVersion writes to results that claim none.
func read(r types.Result) (*types100.Result, error) {
	switch r := r.(type) {
	case nil:
	case *types100.Result:
		if r != nil {
			return r, nil
		}
	case *types040.Result:
		if r != nil {
			return from040(r), nil
		}
	case *types020.Result:
		if r != nil {
			return from020(r), nil
		}
	default:
		// Somebody's own kind of result can turn itself into one of these.
		c, err := r.GetAsVersion(types100.ImplementedSpecVersion)
		if err != nil {
			return nil, fmt.Errorf("result of version %q: %w", r.Version(), err)
		}
		if c, ok := c.(*types100.Result); ok && c != nil {
			return c, nil
		}
		return nil, fmt.Errorf("result of version %q is of the unknown type %T", r.Version(), r)
	}
	return nil, errors.New("no result")
}

func from040(r *types040.Result) *types100.Result {
	res := &types100.Result{Routes: r.Routes, DNS: r.DNS}
	for _, ifc := range r.Interfaces {
		var to *types100.Interface
		if ifc != nil {
			to = &types100.Interface{Name: ifc.Name, Mac: ifc.Mac, Sandbox: ifc.Sandbox}
		}
		res.Interfaces = append(res.Interfaces, to)
	}
	for _, ip := range r.IPs {
		if ip != nil {
			res.IPs = append(res.IPs, &types100.IPConfig{Interface: ip.Interface, Address: ip.Address, Gateway: ip.Gateway})
		}
	}
	return res
}

func from020(r *types020.Result) *types100.Result {
	res := &types100.Result{DNS: r.DNS}
	for _, ip := range []*types020.IPConfig{r.IP4, r.IP6} {
		if ip == nil {
			continue
		}
		res.IPs = append(res.IPs, &types100.IPConfig{Address: ip.IP, Gateway: ip.Gateway})
		for i := range ip.Routes {
			res.Routes = append(res.Routes, &ip.Routes[i])
		}
	}
	return res
}

// mainTable is the number of the routing table that packets follow unless a rule says otherwise.
const mainTable = 254

// isDefault reports whether rt is a default route in the main table.
func isDefault(rt *types.Route) bool {
	if rt == nil || rt.Table != nil && *rt.Table != 0 && *rt.Table != mainTable {
		return false
	}
	ones, bits := rt.Dst.Mask.Size()
	everywhere := ones == 0 && bits != 0 && rt.Dst.IP.IsUnspecified()
	return everywhere || rt.Dst.IP == nil && rt.Dst.Mask == nil && len(rt.GW) > 0
}

// isIn reports whether ip is in one of nets.
func isIn(nets []net.IPNet, ip net.IP) bool {
	for _, n := range nets {
		if n.Contains(ip) {
			return true
		}
	}
	return false
}
