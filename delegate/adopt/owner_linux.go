package adopt

import (
	"errors"
	"net"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/metacni/metacni/internal/inroot"
)

// addressesIn returns the MAC and IP addresses of the interfaces in the network namespace at
// path in root.
func addressesIn(root, path string) (all []string, err error) {
	err = inroot.With(root, path, func(path string) error {
		return ns.WithNetNSPath(path, func(ns.NetNS) error {
			links, linksErr := net.Interfaces()
			for _, link := range links {
				all = append(all, link.HardwareAddr.String())
			}
			ips, err := net.InterfaceAddrs()
			for _, ip := range ips {
				if n, ok := ip.(*net.IPNet); ok {
					all = append(all, n.IP.String())
				}
			}
			return errors.Join(linksErr, err)
		})
	})
	return all, err
}
