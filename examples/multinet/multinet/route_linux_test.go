package multinet

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
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

// Routes are moved in internal/e2e as well, by real plugins.

// The network namespace is looked up in the Root, where plugins see it.
func TestDefaultRouteInRoot(t *testing.T) {
	link := newNamespace(t)
	path := fmt.Sprintf("/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
	asked := []choice{{selection: netconf.Selection{DefaultRoute: []netip.Addr{netip.MustParseAddr("10.9.1.1")}}}}
	added := []delegate.Attached{{
		Attachment: delegate.Attachment{NetNS: path, IfName: "net1"}, Result: json.RawMessage(`{"cniVersion":"1.0.0"}`),
	}}
	if err := moveDefaultRoute("", asked, added); err == nil {
		t.Error("found without the root")
	}
	nodetest.OK(t, moveDefaultRoute("/proc", asked, added))
	routes, err := netlink.RouteList(link, netlink.FAMILY_V4)
	nodetest.OK(t, err)
	if !slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Gw.String() == "10.9.1.1" }) {
		t.Errorf("routes %v", routes)
	}
}

// Results of every version show the new default route. All else in a result stays
// unchanged.
func TestResultsSayWhereTheDefaultRouteLeads(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, gateway string
		before, want  []string // the second one is chosen
	}{
		{
			"moved", "10.9.1.1",
			[]string{`{"cniVersion":"1.0.0","routes":[{"dst":"0.0.0.0/0","gw":"10.9.0.1"},{"dst":"10.0.0.0/8"}],"x":1.0}`, `{"cniVersion":"1.0.0"}`, `{"cniVersion":"1.0.0"}`},
			[]string{`{"cniVersion":"1.0.0","routes":[{"dst":"10.0.0.0/8"}],"x":1.0}`, `{"cniVersion":"1.0.0","routes":[{"dst":"0.0.0.0/0","gw":"10.9.1.1"}]}`, `{"cniVersion":"1.0.0"}`},
		},
		{
			"its own replaced", "10.9.1.1",
			[]string{`{}`, `{"routes":[{"dst":"0.0.0.0/0","gw":"10.9.1.254"}]}`},
			[]string{`{}`, `{"routes":[{"dst":"0.0.0.0/0","gw":"10.9.1.1"}]}`},
		},
		{
			"the other family stays", "fd00::1",
			[]string{`{"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"},{"dst":"::0/0"},{"dst":"fd00::/8"}]}`, `{"routes":null}`},
			[]string{`{"routes":[{"dst":"0.0.0.0/0"},{"dst":"fd00::/8"}]}`, `{"routes":[{"dst":"::/0","gw":"fd00::1"}]}`},
		},
		{
			"unmasked", "10.9.1.1",
			[]string{`{"routes":[{"dst":"10.1.2.3/0"},{"dst":5},7,{"dst":"x"}]}`, `{}`},
			[]string{`{"routes":[{"dst":5},7,{"dst":"x"}]}`, `{"routes":[{"dst":"0.0.0.0/0","gw":"10.9.1.1"}]}`},
		},
		{
			"those of other tables stay", "10.9.1.1",
			[]string{
				`{"cniVersion":"1.1.0","routes":[{"dst":"0.0.0.0/0","table":100},{"dst":"0.0.0.0/0","table":254},{"dst":"0.0.0.0/0","table":0},{"dst":"0.0.0.0/0","table":null},{"dst":"0.0.0.0/0","table":253}]}`,
				`{"cniVersion":"1.1.0","routes":[{"dst":"0.0.0.0/0","gw":"10.9.1.9","table":100}]}`,
			},
			[]string{
				`{"cniVersion":"1.1.0","routes":[{"dst":"0.0.0.0/0","table":100},{"dst":"0.0.0.0/0","table":253}]}`,
				`{"cniVersion":"1.1.0","routes":[{"dst":"0.0.0.0/0","gw":"10.9.1.9","table":100},{"dst":"0.0.0.0/0","gw":"10.9.1.1"}]}`,
			},
		},
		{
			"in old results", "10.9.1.1",
			[]string{
				`{"cniVersion":"0.2.0","ip4":{"ip":"10.9.0.2/24","routes":[{"dst":"10.0.0.0/8"},{"dst":"0.0.0.0/0","gw":"10.9.0.1"}]},"ip6":{"ip":"fd00::2/64","routes":[{"dst":"::/0"}]}}`,
				`{"cniVersion":"0.1.0","ip4":{"ip":"10.9.1.2/24","x":1.0}}`,
				`{"cniVersion":"0.2.0","dns":{},"ip4":null,"routes":[{"dst":"0.0.0.0/0"}]}`,
			},
			[]string{
				`{"cniVersion":"0.2.0","ip4":{"ip":"10.9.0.2/24","routes":[{"dst":"10.0.0.0/8"}]},"ip6":{"ip":"fd00::2/64","routes":[{"dst":"::/0"}]}}`,
				`{"cniVersion":"0.1.0","ip4":{"ip":"10.9.1.2/24","routes":[{"dst":"0.0.0.0/0","gw":"10.9.1.1"}],"x":1.0}}`,
				`{"cniVersion":"0.2.0","dns":{},"ip4":null,"routes":[{"dst":"0.0.0.0/0"}]}`, // "routes" means nothing there
			},
		},
		{
			"in old results, IPv6", "fd00::1",
			[]string{`{"cniVersion":"0.1.0","ip4":{"routes":[{"dst":"0.0.0.0/0"}]},"ip6":{"ip":"fd00::2/64","routes":[{"dst":"::/0"}]}}`, `{"cniVersion":"0.1.0","ip4":{"ip":"10.9.1.2/24"}}`},
			[]string{`{"cniVersion":"0.1.0","ip4":{"routes":[{"dst":"0.0.0.0/0"}]},"ip6":{"ip":"fd00::2/64","routes":[]}}`, `{"cniVersion":"0.1.0","ip4":{"ip":"10.9.1.2/24"}}`},
		},
		{
			"of an older and a newer plugin", "10.9.1.1",
			[]string{`{"cniVersion":"0.2.0","ip4":{"ip":"10.9.0.2/24","routes":[{"dst":"0.0.0.0/0"}]}}`, `{"cniVersion":"1.0.0","ip4":{"routes":[{"dst":"0.0.0.0/0"}]}}`},
			[]string{`{"cniVersion":"0.2.0","ip4":{"ip":"10.9.0.2/24","routes":[]}}`, `{"cniVersion":"1.0.0","ip4":{"routes":[{"dst":"0.0.0.0/0"}]},"routes":[{"dst":"0.0.0.0/0","gw":"10.9.1.1"}]}`},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			added := make([]delegate.Attached, len(tt.before))
			for i, r := range tt.before {
				added[i].Result = json.RawMessage(r)
			}
			nodetest.OK(t, reviseResults(added, 1, netip.MustParseAddr(tt.gateway)))
			var got []string
			for _, a := range added {
				got = append(got, string(a.Result))
			}
			nodetest.Equal(t, "results", got, tt.want)
		})
	}
	for _, bad := range []string{`[]`, `null`, `{"routes":{}}`, `{"cniVersion":5}`, `{"cniVersion":"0.2.0","ip4":[]}`, `{"cniVersion":"0.2.0","ip4":{"routes":{}}}`} {
		if err := reviseResults([]delegate.Attached{{Result: json.RawMessage(bad)}}, 0, netip.IPv4Unspecified()); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}
