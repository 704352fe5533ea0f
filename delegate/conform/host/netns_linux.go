package host

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/conform/internal/realhost"
	"github.com/metacni/metacni/internal/dump"
)

// NewNS makes a network namespace that exists until [RemoveNS], and returns its path, for
// CNI_NETNS.
func NewNS(name string) (path string, err error) {
	path = filepath.Join("/run/netns", name)
	space, err := realhost.NewNS()
	if err == nil {
		err = realhost.Mount(space, path)
		_ = space.Close()
	}
	if err != nil {
		return "", fmt.Errorf("host: make namespace %s: %w", path, err)
	}
	return path, nil
}

// RemoveNS removes a namespace that [NewNS] made, with every interface in it.
func RemoveNS(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("host: remove namespace %s: %w", path, err)
	}
	return os.Remove(path)
}

// Do runs f in the namespace at path. The empty path means the host.
func Do(path string, f func() error) error {
	if path == "" {
		return f()
	}
	return ns.WithNetNSPath(path, func(ns.NetNS) error { return f() })
}

// An Interface is one interface of a namespace, as `ip address` shows it.
type Interface struct {
	Name      string
	Kind      string // "veth", "macvlan", "bridge", ...; "device" for lo
	MAC       string // empty when it has none
	MTU       int
	Addresses []netip.Prefix // without link-local ones
}

// Interfaces returns the interfaces of the namespace at path, in the kernel's order. The
// empty path means the host.
func Interfaces(path string) (ifs []Interface, err error) {
	err = Do(path, func() error {
		links, err := dump.Whole(netlink.LinkList)
		if err != nil {
			return fmt.Errorf("host: list interfaces of %q: %w", path, err)
		}
		for _, l := range links {
			a := l.Attrs()
			i := Interface{Name: a.Name, Kind: l.Type(), MAC: a.HardwareAddr.String(), MTU: a.MTU}
			if i.Addresses, err = realhost.Addresses(l); err != nil {
				return fmt.Errorf("host: list addresses of %s: %w", a.Name, err)
			}
			ifs = append(ifs, i)
		}
		return nil
	})
	return ifs, err
}
