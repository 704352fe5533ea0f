package status

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/internal/fault"
)

// A Network is the state of one container interface, in the JSON form of the
// Network Plumbing Working Group's network-status annotation
// (k8s.v1.cni.cncf.io/network-status holds a list of them). Keys without a
// value are left out. A Network is a plain value: goroutines may share it as
// long as none writes to it.
type Network struct {
	// Name is the network's name.
	Name string `json:"name"`

	// Interface is the interface's name in the container; empty when the
	// result does not say, or when the network has made none.
	Interface string `json:"interface,omitempty"`

	// IPs are the interface's addresses, bare: without the prefix length.
	IPs []string `json:"ips,omitempty"`

	// MAC is the interface's hardware address, as the result writes it.
	MAC string `json:"mac,omitempty"`

	// MTU is in bytes; 0 when the result does not say.
	MTU int `json:"mtu,omitempty"`

	// Default says that this is the interface of the container's default
	// network.
	Default bool `json:"default,omitempty"`

	// DNS is the result's, the same for each of its interfaces.
	DNS types.DNS `json:"dns,omitzero"`

	// DeviceInfo describes the hardware or socket behind the interface; nil
	// when nothing is known of it.
	DeviceInfo *DeviceInfo `json:"device-info,omitempty"`

	// Gateway are the gateways of the interface's default routes, bare.
	Gateway []string `json:"gateway,omitempty"`
}

// Networks lists the container interfaces of the ADD result r, in its order. name
// is the network's name; def says that it is the container's default network.
//
// r may be of every version from 0.1.0 to 1.1.0. An interface is in the container
// when it has a sandbox. If the result has no such interface, because its version
// or its plugin lists none, Networks returns a single Network that has all
// addresses and no interface name.
//
//   - IPs: an address belongs to the interface of its index. An address without an
//     index belongs to the last interface, as in Multus, and so does one with an index
//     out of range, which Multus leaves out if there are several interfaces. Addresses
//     of interfaces outside the container are left out.
//   - Gateway: the gateways of the default routes in the main table. A default route
//     belongs to the interface that has its gateway in one of its subnets, or else to the
//     last interface. One without a gateway has those of the addresses of its family.
//   - Default: if def, true for the first interface with an address that has a
//     gateway, or else for the first interface.
//   - DeviceInfo: the PCI address, if the interface has one (CNI 1.1). A caller
//     that reads the device information file can replace it.
//
// Networks fails, with CNI code 6, when r is nil or no result of a known version;
// then it returns no Networks. Indices, nil entries and malformed addresses in r
// are never an error. r is not changed, and shares nothing with what is
// returned.
func Networks(name string, r types.Result, def bool) ([]Network, error) {
	return NetworksIn("", name, r, def)
}

// NetworksIn is [Networks] for a container with the network namespace netns, as CNI_NETNS names
// it. If an interface has netns as its sandbox, only such interfaces are in the container: some
// plugins list others with a sandbox of their own making, such as "0". An empty netns is not known.
func NetworksIn(netns, name string, r types.Result, def bool) ([]Network, error) {
	res, err := read(r)
	if err != nil {
		return nil, fault.With(types.ErrDecodingFailure, fmt.Errorf("network %q: %w", name, err))
	}
	list, at := interfaces(res.Interfaces, netns)
	last := len(list) - 1
	gateway := -1 // the interface of the first address with a gateway
	subnets := make([][]net.IPNet, len(list))
	gateways := make([][]net.IP, len(list))
	for _, ip := range res.IPs {
		if ip == nil {
			continue
		}
		i := last
		if index := ip.Interface; index != nil && *index >= 0 && *index < len(at) {
			i = at[*index]
		}
		if i < 0 {
			continue
		}
		if gateway < 0 && address(ip.Gateway) != "" {
			gateway = i
		}
		subnets[i] = append(subnets[i], ip.Address)
		list[i].IPs = add(list[i].IPs, ip.Address.IP)
		gateways[i] = append(gateways[i], ip.Gateway)
	}
	for _, rt := range res.Routes {
		if !isDefault(rt) {
			continue
		}
		if address(rt.GW) == "" {
			for i := range list {
				for _, gw := range gateways[i] {
					if isIPv4(gw) == isIPv4(rt.Dst.IP) {
						list[i].Gateway = add(list[i].Gateway, gw)
					}
				}
			}
			continue
		}
		i := slices.IndexFunc(subnets, func(nets []net.IPNet) bool { return isIn(nets, rt.GW) })
		if i < 0 {
			i = last
		}
		list[i].Gateway = add(list[i].Gateway, rt.GW)
	}
	for i := range list {
		list[i].Name = name
		list[i].Default = def && i == max(gateway, 0)
		list[i].DNS = *res.DNS.Copy()
	}
	return list, nil
}

// interfaces returns a Network for each interface in the container, at least
// one, and for each of all interfaces which of them it is: -1 for those
// outside of the container.
func interfaces(all []*types100.Interface, netns string) (list []Network, at []int) {
	at = make([]int, len(all))
	in := func(ifc *types100.Interface) bool { return ifc != nil && ifc.Sandbox == netns }
	if netns == "" || !slices.ContainsFunc(all, in) {
		in = func(ifc *types100.Interface) bool { return ifc != nil && ifc.Sandbox != "" }
	}
	for i, ifc := range all {
		at[i] = -1
		if !in(ifc) {
			continue
		}
		at[i] = len(list)
		n := Network{Interface: ifc.Name, MAC: ifc.Mac, MTU: max(ifc.Mtu, 0)}
		if ifc.PciID != "" {
			n.DeviceInfo = &DeviceInfo{Type: "pci", Version: DeviceInfoVersion, PCI: &PCIDevice{Address: ifc.PciID}}
		}
		list = append(list, n)
	}
	if len(list) == 0 {
		return []Network{{}}, make([]int, len(at))
	}
	return list, at
}

// add appends ip to list unless it is no address or there already.
func add(list []string, ip net.IP) []string {
	if s := address(ip); s != "" && !slices.Contains(list, s) {
		return append(list, s)
	}
	return list
}

// address returns ip as text, or "" when it is no address.
func address(ip net.IP) string {
	a, ok := netip.AddrFromSlice(ip)
	if !ok {
		return ""
	}
	return a.Unmap().String()
}

func isIPv4(ip net.IP) bool { return ip.To4() != nil }
