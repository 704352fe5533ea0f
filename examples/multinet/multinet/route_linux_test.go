package multinet

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/nodetest"
)

// newNamespace moves the current thread, for good, to a new network namespace
// in which net1 has addresses and is up. It skips the test where it cannot.
func newNamespace(t *testing.T) netlink.Link {
	t.Helper()
	runtime.LockOSThread() // and never unlock: the thread is spoilt
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		t.Skipf("needs the right to make a network namespace: %v", err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "net1"
	link := netlink.Link(&netlink.Dummy{LinkAttrs: attrs})
	if err := netlink.LinkAdd(link); errors.Is(err, unix.EOPNOTSUPP) {
		link = &netlink.Bridge{LinkAttrs: attrs}
		if err := netlink.LinkAdd(link); err != nil {
			t.Skipf("needs a kernel with dummy or bridge links: %v", err)
		}
	} else if err != nil {
		t.Fatal(err)
	}
	nodetest.OK(t, netlink.LinkSetUp(link))
	for _, cidr := range []string{"10.9.1.2/24", "2001:db8::2/64"} {
		addr, err := netlink.ParseAddr(cidr)
		nodetest.OK(t, err)
		addr.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(link, addr); err != nil {
			t.Skipf("needs a kernel with IPv6: %s: %v", cidr, err)
		}
	}
	return link
}

// Every default route of the family is replaced, and no other route.
func TestReplaceDefaultRoutes(t *testing.T) {
	for _, tt := range []struct {
		name, gateway string
		routes        []netlink.Route // of net1 where they do not say
		want          []string        // those to nowhere in particular that are there then
	}{
		{"none", "10.9.1.1", nil, []string{"10.9.1.1"}},
		{"one", "10.9.1.1", []netlink.Route{{Gw: net.ParseIP("10.9.1.9")}}, []string{"10.9.1.1"}},
		{"the same", "10.9.1.1", []netlink.Route{{Gw: net.ParseIP("10.9.1.1"), Protocol: unix.RTPROT_STATIC}}, []string{"10.9.1.1"}},
		{
			"of many metrics", "10.9.1.1",
			[]netlink.Route{{Gw: net.ParseIP("10.9.1.9")}, {Gw: net.ParseIP("10.9.1.8"), Priority: 7}, {Gw: net.ParseIP("10.9.1.8"), Priority: 8, Protocol: unix.RTPROT_DHCP}, {Type: unix.RTN_UNREACHABLE, Priority: 9}},
			[]string{"10.9.1.1"},
		},
		{
			"of many hops", "10.9.1.1",
			[]netlink.Route{{MultiPath: []*netlink.NexthopInfo{{Gw: net.ParseIP("10.9.1.8")}, {Gw: net.ParseIP("10.9.1.9")}}, Protocol: unix.RTPROT_STATIC, MTU: 1400}},
			[]string{"10.9.1.1"},
		},
		{
			"not ours", "10.9.1.1",
			[]netlink.Route{{Gw: net.ParseIP("10.9.1.9"), Table: 100}, {Gw: net.ParseIP("10.9.1.8"), Priority: 7, Protocol: unix.RTPROT_KERNEL}, {Gw: net.ParseIP("2001:db8::9")}},
			[]string{"10.9.1.1", "10.9.1.8", "2001:db8::9"},
		},
		{
			"IPv6", "2001:db8::1",
			[]netlink.Route{{Gw: net.ParseIP("2001:db8::9")}, {Gw: net.ParseIP("2001:db8::8"), Priority: 7}, {Gw: net.ParseIP("2001:db8::9"), Table: 100}, {Gw: net.ParseIP("10.9.1.9")}},
			[]string{"10.9.1.9", "2001:db8::1"},
		},
		{
			"IPv6 of many hops", "2001:db8::1",
			[]netlink.Route{{MultiPath: []*netlink.NexthopInfo{{Gw: net.ParseIP("2001:db8::8")}, {Gw: net.ParseIP("2001:db8::9")}}}},
			[]string{"2001:db8::1"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			index := newNamespace(t).Attrs().Index
			for _, r := range tt.routes {
				r.LinkIndex = index
				if r.Type == unix.RTN_UNREACHABLE || r.MultiPath != nil {
					r.LinkIndex = 0
				}
				for _, hop := range r.MultiPath {
					hop.LinkIndex = index
				}
				if r.Gw == nil {
					r.Dst = &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
				}
				if r.MultiPath != nil && r.MultiPath[0].Gw.To4() == nil {
					r.Dst = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
				}
				if err := netlink.RouteAppend(&r); err != nil {
					t.Fatalf("%v: %v", r, err)
				}
			}
			nodetest.OK(t, replaceDefaultRoutes("net1", netip.MustParseAddr(tt.gateway)))
			routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
			nodetest.OK(t, err)
			var got []string
			for _, r := range routes {
				if r.Dst == nil || r.Dst.IP.IsUnspecified() {
					got = append(got, r.Gw.String())
				}
			}
			slices.Sort(got)
			nodetest.Equal(t, "got", got, tt.want)
			if others, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: 100}, netlink.RT_FILTER_TABLE); err != nil || slices.ContainsFunc(tt.routes, func(r netlink.Route) bool { return r.Table == 100 }) != (len(others) > 0) {
				t.Errorf("in another table: %v, %v", others, err)
			}
		})
	}
	newNamespace(t)
	for name, gateway := range map[string]string{"absent": "10.9.1.1", "net1": "10.8.0.1"} {
		if err := replaceDefaultRoutes(name, netip.MustParseAddr(gateway)); err == nil {
			t.Errorf("no error for %s via %s", name, gateway)
		}
	}
}

// A netlink message that is too short is an error, not a panic.
func TestShortMessageIsAnError(t *testing.T) {
	t.Parallel()
	message := make([]byte, unix.SizeofRtMsg+unix.SizeofRtAttr)
	message[4] = unix.RT_TABLE_MAIN
	for n := range len(message) {
		r, _, err := defaultRoute(message[:n])
		if (err == nil) != (n >= unix.SizeofRtMsg) || (r == nil) != (err != nil) {
			t.Errorf("%d bytes: %v, %v", n, r, err)
		}
	}
	for _, n := range []byte{0, 3, 5, 255} {
		message[unix.SizeofRtMsg] = n
		if _, _, err := defaultRoute(message); !errors.Is(err, errCut) {
			t.Errorf("an attribute of %d bytes: %v", n, err)
		}
	}
}
