//go:build e2e && linux

package plugin

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
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
	return newLink(t, "net1", "10.9.1.2/24", "2001:db8::2/64")
}

// newLink makes an interface with addresses that is up.
func newLink(t *testing.T, name string, addresses ...string) netlink.Link {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
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
	for _, cidr := range addresses {
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
					r.Dst = everywhere(strings.Contains(tt.gateway, ":"))
				}
				nodetest.OK(t, netlink.RouteAppend(&r))
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
			others, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: 100}, netlink.RT_FILTER_TABLE)
			nodetest.OK(t, err)
			nodetest.Equal(t, "there is one in another table", len(others) > 0, slices.ContainsFunc(tt.routes, func(r netlink.Route) bool { return r.Table == 100 }))
		})
	}
	newNamespace(t)
	for name, gateway := range map[string]string{"absent": "10.9.1.1", "net1": "10.8.0.1"} {
		nodetest.Refused(t, name+" via "+gateway, replaceDefaultRoutes(name, netip.MustParseAddr(gateway)))
	}
}

// Routes are moved in internal/e2e as well, by real plugins.

// Of another network's default routes only its own hops are removed.
func TestOnlyOwnRoutesAreRemoved(t *testing.T) {
	index := newNamespace(t).Attrs().Index
	other := newLink(t, "net2", "10.9.2.2/24", "2001:db8:2::2/64").Attrs().Index
	for six, gateways := range map[bool][]string{false: {"10.9.1.1", "10.9.1.9", "10.9.2.1"}, true: {"2001:db8::1", "2001:db8::9", "2001:db8:2::1"}} {
		hop := func(index, gateway int) *netlink.NexthopInfo {
			return &netlink.NexthopInfo{LinkIndex: index, Gw: net.ParseIP(gateways[gateway])}
		}
		for _, r := range []netlink.Route{
			{LinkIndex: index, Gw: net.ParseIP(gateways[0]), Priority: 7},
			{LinkIndex: other, Gw: net.ParseIP(gateways[2]), Priority: 8},
			{MultiPath: []*netlink.NexthopInfo{hop(index, 0), hop(other, 2)}, Priority: 9},
			{MultiPath: []*netlink.NexthopInfo{hop(index, 0), hop(index, 1)}, Priority: 10},
			{LinkIndex: index, Gw: net.ParseIP(gateways[0]), Table: 100},
		} {
			if r.Dst = everywhere(six); netlink.RouteAppend(&r) != nil {
				t.Fatalf("cannot add %v", r)
			}
		}
		nodetest.OK(t, removeOwnRoutes("net1", six))
		routes, _, err := defaultRoutes("net1", six)
		nodetest.OK(t, err)
		var left []string
		for _, r := range routes {
			for _, hop := range append(r.MultiPath, &netlink.NexthopInfo{LinkIndex: r.LinkIndex}) {
				if hop.LinkIndex != 0 {
					left = append(left, fmt.Sprintf("%d by %d", r.Priority, hop.LinkIndex))
				}
			}
		}
		slices.Sort(left)
		nodetest.Equal(t, "left", left, []string{fmt.Sprintf("8 by %d", other), fmt.Sprintf("9 by %d", other)})
	}
}

// A network that makes no interface, as that of istio-cni, has no routes to give up. The one that is
// to have the default route needs an interface.
func TestOnlyTheNetworkOfTheDefaultRouteNeedsAnInterface(t *testing.T) {
	newNamespace(t)
	for name, says := range map[string]string{"net1": "", "absent": "has made no interface"} {
		for _, here := range []string{"true", "false"} {
			var printed bytes.Buffer
			err := New(Cluster{}).Do(t.Context(), plugin.System{Stdout: &printed}, delegate.CommandAdd, skel.CmdArgs{
				ContainerID: "c1", IfName: name, Netns: fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid()), NetnsOverride: "1",
				StdinData: []byte(`{"cniVersion":"1.0.0","name":"blue","type":"multinet","step":"default-route","gateways":["10.9.1.1","2001:db8::1"],"here":` + here + `,"prevResult":{"cniVersion":"1.0.0"}}`),
			})
			if says != "" && here == "true" {
				nodetest.Fails(t, err, 999, says, "default-route", name)
			} else if err != nil || !strings.HasPrefix(printed.String(), "{") {
				t.Errorf("%s, here %s: %v, printed %s", name, here, err, printed.String())
			}
		}
	}
}

// The network namespace is looked up in the Root, where plugins see it. CHECK wants the route.
func TestDefaultRouteInRoot(t *testing.T) {
	link := newNamespace(t)
	var printed bytes.Buffer
	call := func(command delegate.Command, root plugin.Root) error {
		return New(Cluster{}).Do(t.Context(), plugin.System{Root: root, Stdout: &printed}, command, skel.CmdArgs{
			ContainerID: "c1", IfName: "net1", Netns: fmt.Sprintf("/%d/task/%d/ns/net", os.Getpid(), unix.Gettid()), NetnsOverride: "1",
			StdinData: []byte(`{"cniVersion":"1.0.0","name":"blue","type":"multinet","step":"default-route","gateways":["10.9.1.1"],"here":true,"prevResult":{"cniVersion":"1.0.0"}}`),
		})
	}
	nodetest.Refused(t, "without the root", call(delegate.CommandAdd, ""))
	if err := call(delegate.CommandCheck, "/proc"); err == nil || !strings.Contains(err.Error(), "via 10.9.1.1 on net1") {
		t.Errorf("CHECK before the ADD: %v", err)
	}
	nodetest.OK(t, call(delegate.CommandAdd, "/proc"))
	nodetest.OK(t, call(delegate.CommandCheck, "/proc"))
	nodetest.Equal(t, "result", printed.String(), `{"cniVersion":"1.0.0","routes":[{"dst":"0.0.0.0/0","gw":"10.9.1.1"}]}`)
	routes, err := netlink.RouteList(link, netlink.FAMILY_V4)
	nodetest.OK(t, err)
	if !slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Gw.String() == "10.9.1.1" }) {
		t.Errorf("routes %v", routes)
	}
}

// A caller may have the ID of a container in the pod, and not the sandbox's. Then the network
// namespace says which record is meant, by whatever path.
func TestContainerOfAPodIsFoundByItsNamespace(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	netns, other := filepath.Join(t.TempDir(), "ns"), filepath.Join(t.TempDir(), "ns")
	nodetest.NetNS(t, netns)
	nodetest.NetNS(t, other)
	sandbox := func(a *skel.CmdArgs) { a.Netns = netns }
	h.mustRun("ADD", bridge, sandbox)
	path, err := os.Readlink(netns)
	nodetest.OK(t, err)
	app := func(a *skel.CmdArgs) { a.ContainerID, a.Netns = "app", path }
	h.Trace()
	h.mustSecondary("ADD", green, app)
	nodetest.Fails(t, h.secondary("ADD", green, func(a *skel.CmdArgs) { a.ContainerID, a.Netns = "app", other }), 7, `"app"`)
	h.mustSecondary("DEL", green, app)
	h.WantTrace("ADD macvlan hot0", "DEL macvlan hot0")
	h.mustRun("DEL", bridge, sandbox)
	h.clean()
}
