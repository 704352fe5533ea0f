package adopt

import (
	"net"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/metacni/metacni/internal/inroot"
)

// addressesIn returns the MAC and IP addresses of the interfaces in the network namespace at
// path in root.
func addressesIn(root, path string) (all []string, err error) {
	err = inroot.With(root, path, func(path string) error {
		return ns.WithNetNSPath(path, func(ns.NetNS) error {
			links, err := net.Interfaces()
			if err != nil {
				return err
			}
			for _, link := range links {
				all = append(all, link.HardwareAddr.String())
				ips, err := link.Addrs()
				if err != nil {
					return err
				}
				for _, ip := range ips {
					if n, ok := ip.(*net.IPNet); ok {
						all = append(all, n.IP.String())
					}
				}
			}
			return nil
		})
	})
	return all, err
}
