package ifname

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// dumps is how often a list is asked for that links came or went under.
const dumps = 5

// skipStats is RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h.
const skipStats = 1 << 3

// Package nl finds out the order of bytes at the first call, without a lock.
// Done here, it is read only when goroutines come.
var _ = nl.NativeEndian()

func taken(nsPath string) (names []string, err error) {
	netns, err := open(nsPath)
	if err != nil {
		return nil, err
	}
	defer func() { _ = netns.Close() }()
	err = netns.Do(func(ns.NetNS) error {
		var err error
		names, err = linkNames(dump)
		return err
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

// linkNames lists the names that dump finds. A dump that the kernel reports as
// interrupted, because a link came or went meanwhile, is made again.
func linkNames(dump func() ([][]byte, error)) ([]string, error) {
	msgs, err := dump()
	for try := 1; errors.Is(err, nl.ErrDumpInterrupted) && try < dumps; try++ {
		msgs, err = dump()
	}
	var names []string
	for _, m := range msgs {
		if err == nil {
			names, err = appendNames(names, m)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return names, nil
}

// dump asks for the links of the current thread's namespace.
//
// netlink.LinkList would ask for the virtual functions and statistics of every
// link too, and fail on any attribute of any link that it cannot parse.
func dump() ([][]byte, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)))
	return req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
}

// appendNames appends the names in msg, the body of an RTM_NEWLINK message.
func appendNames(names []string, msg []byte) ([]string, error) {
	if len(msg) < unix.SizeofIfInfomsg {
		return nil, errCut
	}
	err := eachAttr(msg[unix.SizeofIfInfomsg:], func(kind uint16, value []byte) error {
		switch kind {
		case unix.IFLA_IFNAME:
			names = append(names, unix.ByteSliceToString(value))
		case unix.IFLA_PROP_LIST:
			return eachAttr(value, func(kind uint16, value []byte) error {
				if kind == unix.IFLA_ALT_IFNAME {
					names = append(names, unix.ByteSliceToString(value))
				}
				return nil
			})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return names, nil
}

var errCut = errors.New("a message is cut short")

// eachAttr calls do for each of the attributes in b, in order, and stops at the
// first error. nl.ParseRouteAttr panics when the last one lacks its padding.
func eachAttr(b []byte, do func(kind uint16, value []byte) error) error {
	for len(b) >= unix.SizeofRtAttr {
		n := int(binary.NativeEndian.Uint16(b))
		kind := binary.NativeEndian.Uint16(b[2:]) &^ unix.NLA_F_NESTED
		if n < unix.SizeofRtAttr || n > len(b) {
			return errCut
		}
		if err := do(kind, b[unix.SizeofRtAttr:n]); err != nil {
			return err
		}
		padded := (n + unix.RTA_ALIGNTO - 1) &^ (unix.RTA_ALIGNTO - 1)
		b = b[min(padded, len(b)):]
	}
	return nil
}
