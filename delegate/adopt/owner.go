package adopt

import (
	"cmp"
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

// adoption returns the adoption of what is attached to a container, found in sources. All of it has
// the same path of the network namespace, or none if each may lead to another namespace by now.
func adoption(root string, k scratch.Key, attached []delegate.Attached, sources ...string) lifecycle.Adoption {
	path := netNS(root, attached)
	for i := range attached {
		attached[i].NetNS = path
	}
	return lifecycle.Adoption{Key: k, Attached: attached, Sources: sources}
}

// netNS returns the path of the network namespace of what is attached: the first one that is
// confirmed, or else the first one at which nothing is.
func netNS(root string, attached []delegate.Attached) (path string) {
	for _, a := range attached {
		switch {
		case a.NetNS == "":
		case missing(root, a.NetNS):
			path = cmp.Or(path, a.NetNS)
		case confirmed(root, a.NetNS, attached):
			return a.NetNS
		}
	}
	return path
}

// confirmed reports whether the network namespace at path is that of what is attached. A path such
// as /proc/PID/ns/net leads to another namespace when the process has ended. That nothing confirms
// it is no proof: a container may have moved its interfaces.
func confirmed(root, path string, attached []delegate.Attached) bool {
	have, err := addressesIn(root, path)
	return err == nil && slices.ContainsFunc(addressesOf(attached), func(address string) bool { return slices.Contains(have, address) })
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
