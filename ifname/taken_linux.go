package ifname

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/dump"
)

func taken(nsPath string) (names []string, err error) {
	netns, err := open(nsPath)
	if err != nil {
		return nil, err
	}
	defer func() { _ = netns.Close() }()
	err = netns.Do(func(ns.NetNS) error {
		links, err := dump.Whole(netlink.LinkList)
		if err != nil {
			return fmt.Errorf("list links: %w", err)
		}
		for _, l := range links {
			names = append(append(names, l.Attrs().Name), l.Attrs().AltNames...)
		}
		return nil
	})
	return names, err
}

// open opens the network namespace at path and nothing else. Package ns tells
// files by their file system only, and says what is wrong in text only.
func open(path string) (ns.NetNS, error) { //nolint:ireturn // package ns has no type for it
	netns, err := ns.GetNS(path)
	if errors.As(err, new(ns.NSPathNotExistErr)) || errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrNetNS, fs.ErrNotExist)
	}
	if errors.As(err, new(ns.NSPathNotNSErr)) {
		return nil, ErrNetNS
	}
	if err != nil {
		return nil, err
	}
	// A namespace of another kind lives in the same file system, and so may
	// any file of /proc.
	kind, err := unix.IoctlRetInt(int(netns.Fd()), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		_ = netns.Close()
		return nil, ErrNetNS
	}
	return netns, nil
}
