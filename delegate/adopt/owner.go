package adopt

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/internal/inroot"
)

// settle finds out whether the container of a is gone: nothing is at the path of
// its network namespace, or another container's namespace is. Then settle removes
// the path from a, so that nothing of another container is touched. When it cannot
// find out, it leaves a unchanged.
func settle(root string, a *lifecycle.Adoption) {
	i := slices.IndexFunc(a.Attached, func(d delegate.Attached) bool { return d.NetNS != "" })
	if i < 0 || !gone(root, a.Attached[i].NetNS, a.Attached) {
		return
	}
	a.Gone = true
	for i := range a.Attached {
		a.Attached[i].NetNS = ""
	}
}

// gone reports whether the network namespace at path is certainly not that of
// what is attached.
func gone(root, path string, attached []delegate.Attached) bool {
	if !filepath.IsAbs(path) {
		return false
	}
	if missing(root, path) {
		// Without its directory we do not see the namespaces: we run in
		// another container, or in another root.
		return !missing(root, filepath.Dir(path))
	}
	want := addressesOf(attached)
	if want.none() {
		return false
	}
	have, err := addressesIn(root, path)
	return err == nil && !have.share(want)
}

func missing(root, path string) bool {
	err := inroot.With(root, path, func(path string) error { _, err := os.Stat(path); return err })
	return errors.Is(err, fs.ErrNotExist)
}

// addresses identify a container.
type addresses struct {
	mac map[string]bool
	ip  map[netip.Addr]bool
}

func (a addresses) none() bool { return len(a.mac)+len(a.ip) == 0 }

// share reports whether one of b is in a. One is enough: a container may have
// given itself another MAC address, or moved its IP address to another
// interface, as virtual machines in one do.
func (a addresses) share(b addresses) bool {
	for mac := range b.mac {
		if a.mac[mac] {
			return true
		}
	}
	for ip := range b.ip {
		if a.ip[ip] {
			return true
		}
	}
	return false
}

func (a addresses) addMAC(mac net.HardwareAddr) {
	if len(mac) > 0 {
		a.mac[string(mac)] = true
	}
}

func (a addresses) addIP(n *net.IPNet) {
	if ip, ok := netip.AddrFromSlice(n.IP); ok {
		a.ip[ip.Unmap()] = true
	}
}

func newAddresses() addresses {
	return addresses{make(map[string]bool), make(map[netip.Addr]bool)}
}

// addressesOf returns those that the results give to interfaces in the
// container.
func addressesOf(attached []delegate.Attached) addresses {
	all := newAddresses()
	for _, a := range attached {
		r := result(a)
		for _, i := range r.Interfaces {
			if i.Sandbox != "" {
				mac, _ := net.ParseMAC(i.Mac) // what is none is none
				all.addMAC(mac)
			}
		}
		for _, ip := range r.IPs {
			if ip.Interface == nil || inside(r, *ip.Interface) {
				all.addIP(&ip.Address)
			}
		}
	}
	return all
}

// inside reports whether the i-th interface of r is in the container, or may be.
func inside(r *types100.Result, i int) bool {
	return i < 0 || i >= len(r.Interfaces) || r.Interfaces[i].Sandbox != ""
}

// sandbox is the network namespace that the result of a has its interface in.
func sandbox(a delegate.Attached) string {
	for _, i := range result(a).Interfaces {
		if i.Name == a.IfName && filepath.IsAbs(i.Sandbox) {
			return i.Sandbox
		}
	}
	return ""
}

// result is that of a, or an empty one.
func result(a delegate.Attached) *types100.Result {
	if r, err := a.Decode(); err == nil {
		if current, err := types100.NewResultFromResult(r); err == nil {
			return current
		}
	}
	return &types100.Result{}
}
