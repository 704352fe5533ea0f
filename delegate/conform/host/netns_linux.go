package host

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/conform/internal/realhost"
	"github.com/metacni/metacni/internal/dump"
)

const nsDir = "/run/netns"

// NewNS makes a network namespace that exists until [RemoveNS], and returns its path, for
// CNI_NETNS. It ends a thread: the main goroutine must have called
// [runtime.LockOSThread].
func NewNS(name string) (path string, err error) {
	path = filepath.Join(nsDir, name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return "", fmt.Errorf("host: new namespace: %w", err)
	}
	done := make(chan error)
	go func() {
		// Not unlocked: the thread is in another namespace and must end with
		// this goroutine.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("host: new namespace: %w", err)
			return
		}
		if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
			done <- fmt.Errorf("host: keep namespace %s: %w", path, err)
			return
		}
		done <- nil
	}()
	return path, <-done
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
			if i.Addresses, err = realhost.Addresses(&netlink.Handle{}, l); err != nil {
				return fmt.Errorf("host: list addresses of %s: %w", a.Name, err)
			}
			ifs = append(ifs, i)
		}
		return nil
	})
	return ifs, err
}
