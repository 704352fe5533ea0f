package adopt

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/internal/inroot"
	"github.com/metacni/metacni/scratch"
)

// adoption is that of what is attached, found in sources. If the container is certainly
// gone, because nothing is at the path of its network namespace or another container's
// namespace is, the adoption lacks the path, so that nothing of another container is touched.
func adoption(root string, k scratch.Key, attached []delegate.Attached, sources ...string) lifecycle.Adoption {
	a := lifecycle.Adoption{Key: k, Attached: attached, Sources: sources}
	i := slices.IndexFunc(attached, func(d delegate.Attached) bool { return d.NetNS != "" })
	if i < 0 || !gone(root, attached[i].NetNS, attached) {
		return a
	}
	a.Gone = true
	for i := range attached {
		attached[i].NetNS = ""
	}
	return a
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
	if len(want) == 0 {
		return false
	}
	have, err := addressesIn(root, path)
	// One is enough: a container may have given itself another MAC address, or moved its
	// IP address to another interface, as virtual machines in one do.
	return err == nil && !slices.ContainsFunc(want, func(address string) bool { return slices.Contains(have, address) })
}

func missing(root, path string) bool {
	err := inroot.With(root, path, func(path string) error { _, err := os.Stat(path); return err })
	return errors.Is(err, fs.ErrNotExist)
}

// addressesOf returns the MAC and IP addresses that the results give to interfaces in the
// container.
func addressesOf(attached []delegate.Attached) (all []string) {
	for _, a := range attached {
		r := result(a)
		for _, i := range r.Interfaces {
			if mac, err := net.ParseMAC(i.Mac); err == nil && i.Sandbox != "" {
				all = append(all, mac.String())
			}
		}
		for _, ip := range r.IPs {
			if ip.Interface == nil || inside(r, *ip.Interface) {
				all = append(all, ip.Address.IP.String())
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
	if r, err := a.ParsedResult(); err == nil {
		if current, err := types100.NewResultFromResult(r); err == nil {
			return current
		}
	}
	return &types100.Result{}
}
