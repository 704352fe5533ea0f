package multinet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
)

// moveDefaultRoute replaces the default routes of the container by those of the
// selections that have one, and changes the results in added accordingly. Paths of
// namespaces are paths in root.
func moveDefaultRoute(root plugin.Root, attachments []attachment, added []delegate.Attached) error {
	for i, a := range attachments {
		for _, gateway := range a.selection.DefaultRoute {
			gateway = gateway.Unmap()
			if err := routeVia(root, added[i], gateway); err != nil {
				return fmt.Errorf("default route of network %q (%s) via %s: %w", a.Network.Name(), added[i].IfName, gateway, err)
			}
			if err := reviseResults(added, i, gateway); err != nil {
				return fmt.Errorf("default route of network %q (%s) in the results: %w", a.Network.Name(), added[i].IfName, err)
			}
		}
	}
	return nil
}

// routeVia replaces the default routes of gateway's family in a's network namespace
// by one via gateway on a's interface.
func routeVia(root plugin.Root, a delegate.Attached, gateway netip.Addr) error {
	route := func(ns.NetNS) error { return replaceDefaultRoutes(a.IfName, gateway) }
	return root.With(a.NetNS, func(path string) error { return ns.WithNetNSPath(path, route) })
}

// This file uses package nl instead of package netlink, which would be a tenth of a
// small program.

// dumps is how often listing the routes is tried if they change meanwhile.
const dumps = 10

// replaceDefaultRoutes replaces the default routes of gateway's family, in the
// current thread's namespace, by one via gateway on the interface.
func replaceDefaultRoutes(ifName string, gateway netip.Addr) error {
	index, err := linkIndex(ifName)
	if err != nil {
		return fmt.Errorf("find the interface: %w", err)
	}
	family := uint8(unix.AF_INET)
	if gateway.Is6() {
		family = unix.AF_INET6
	}
	routes, err := listRoutes(family)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, message := range routes {
		r, priority, err := defaultRoute(message)
		if err != nil {
			return fmt.Errorf("list routes: %w", err)
		}
		if r == nil {
			continue
		}
		// The request holds only what identifies the route: the kernel refuses
		// some attributes that it lists.
		req := nl.NewNetlinkRequest(unix.RTM_DELROUTE, unix.NLM_F_ACK)
		req.AddData(r)
		if priority != nil {
			req.AddData(nl.NewRtAttr(unix.RTA_PRIORITY, priority))
		}
		if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove a route: %w", err)
		}
	}
	r := nl.NewRtMsg()
	r.Family = family
	req := nl.NewNetlinkRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	req.AddData(r)
	req.AddData(nl.NewRtAttr(unix.RTA_GATEWAY, gateway.AsSlice()))
	req.AddData(nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(index)))
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("add a route: %w", err)
	}
	return nil
}

var errCut = errors.New("netlink message is too short")

func linkIndex(name string) (uint32, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	messages, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return 0, err
	}
	if len(messages) != 1 || len(messages[0]) < unix.SizeofIfInfomsg {
		return 0, errCut
	}
	return binary.NativeEndian.Uint32(messages[0][4:]), nil
}

// listRoutes returns the bodies of the RTM_NEWROUTE messages of a family. It tries
// again if the kernel reports that the routes have changed meanwhile.
func listRoutes(family uint8) (messages [][]byte, err error) {
	for range dumps {
		req := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
		req.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: family}})
		messages, err = req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE)
		if !errors.Is(err, nl.ErrDumpInterrupted) {
			break
		}
	}
	return messages, err
}

// defaultRoute returns the default route in message, the body of an RTM_NEWROUTE
// message, and its priority. It returns nil for a route that must stay: one to
// another destination, of another table than the main one, of the kernel, or a cached
// one.
func defaultRoute(message []byte) (r *nl.RtMsg, priority []byte, err error) {
	if len(message) < unix.SizeofRtMsg {
		return nil, nil, errCut
	}
	found := *nl.DeserializeRtMsg(message)
	if found.Dst_len != 0 || found.Table != unix.RT_TABLE_MAIN || found.Protocol == unix.RTPROT_KERNEL || found.Flags&unix.RTM_F_CLONED != 0 {
		return nil, nil, nil
	}
	found.Flags = 0 // the state of its next hop
	for b := message[unix.SizeofRtMsg:]; len(b) >= unix.SizeofRtAttr; {
		n := int(binary.NativeEndian.Uint16(b))
		if n < unix.SizeofRtAttr || n > len(b) {
			return nil, nil, errCut
		}
		if binary.NativeEndian.Uint16(b[2:]) == unix.RTA_PRIORITY {
			priority = b[unix.SizeofRtAttr:n]
		}
		b = b[min((n+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1), len(b)):]
	}
	return &found, priority, nil
}
