package adopt

import (
	"net"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/metacni/metacni/internal/inroot"
)

// addressesIn returns those of the interfaces in the network namespace at path
// in root.
func addressesIn(root, path string) (addresses, error) {
	all := newAddresses()
	err := inroot.With(root, path, func(path string) error {
		return ns.WithNetNSPath(path, func(ns.NetNS) error {
			links, err := net.Interfaces()
			if err != nil {
				return err
			}
			for _, link := range links {
				all.addMAC(link.HardwareAddr)
			}
			ips, err := net.InterfaceAddrs()
			if err != nil {
				return err
			}
			for _, ip := range ips {
				if n, ok := ip.(*net.IPNet); ok {
					all.addIP(n)
				}
			}
			return nil
		})
	})
	return all, err
}
