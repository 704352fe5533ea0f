package multinet

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
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
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
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
			err := New(Cluster{}).Do(t.Context(), plugin.Process{Stdout: &printed}, delegate.CommandAdd, skel.CmdArgs{
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
		return New(Cluster{}).Do(t.Context(), plugin.Process{Root: root, Stdout: &printed}, command, skel.CmdArgs{
			ContainerID: "c1", IfName: "net1", Netns: fmt.Sprintf("/%d/task/%d/ns/net", os.Getpid(), unix.Gettid()), NetnsOverride: "1",
			StdinData: []byte(`{"cniVersion":"1.0.0","name":"blue","type":"multinet","step":"default-route","gateways":["10.9.1.1"],"here":true,"prevResult":{"cniVersion":"1.0.0"}}`),
		})
	}
	if err := call(delegate.CommandAdd, ""); err == nil {
		t.Error("found without the root")
	}
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
			var got []string
			for i, r := range tt.before {
				revised, err := revise(json.RawMessage(r), netip.MustParseAddr(tt.gateway), i == 1)
				nodetest.OK(t, err)
				got = append(got, string(revised))
			}
			nodetest.Equal(t, "results", got, tt.want)
		})
	}
}

// A DEL without a record removes what the runtime has attached to the primary network, as
// libcni's cache has it, whatever else is wrong with the configuration.
func TestDELRemovesWhatWasAttachedBeforeMultinet(t *testing.T) {
	t.Parallel()
	const (
		blue = `{"cniVersion":"1.0.0","name":"blue","plugins":[{"type":"bridge"},{"type":"tuning"}]}`
		file = `cni/results/blue-c1-eth0`
	)
	entry := fmt.Sprintf(`{"kind":"cniCacheV1","containerId":"c1","config":%q,"ifName":"eth0","networkName":"blue","netns":"/no-such-directory/c1"}`,
		base64.StdEncoding.EncodeToString([]byte(blue)))
	for _, tt := range []struct {
		name, conf string
		found      bool
	}{
		{"delegate", `"delegates":[` + blue + `]`, true},
		{"delegate of another configuration now", `"delegates":[{"name":"blue","type":"macvlan"}]`, true},
		{"cluster network by path", `"clusterNetwork":"$DIR/net.d/blue.conflist"`, true},
		{"cluster network by name", `"clusterNetwork":"blue"`, true},
		{"broken keys", `"delegates":[{"name":"blue","plugins":5},7],"nadDir":"x","confDir":1,"capabilities":"","namespaceIsolation":"no"`, true},
		{"another network", `"delegates":[{"name":"green","type":"bridge"}],"nadDir":"x"`, false},
		{"no network", `"delegates":5,"clusterNetwork":5`, false},
		{"no file", `"clusterNetwork":"$DIR/absent"`, false},
		{"no cache", `"delegates":[` + blue + `],"cniCacheDir":""`, false},
		{"unusable cache", `"delegates":[` + blue + `],"cniCacheDir":["x"]`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			h.Write("net.d/blue.conflist", blue)
			h.Write(file, entry)
			conf := keys(`"cniCacheDir":"`+filepath.Join(h.Dir, "cni")+`"`, os.Expand(tt.conf, func(string) string { return h.Dir }))
			other := func(a *skel.CmdArgs) { a.ContainerID = "c2" }
			h.mustRun(t, "DEL", conf, other)
			wantTrace(t, h)
			h.mustRun(t, "DEL", conf)
			if tt.found {
				wantTrace(t, h, "DEL tuning eth0", "DEL bridge eth0")
			} else {
				wantTrace(t, h)
			}
			h.mustRun(t, "DEL", conf)
			wantTrace(t, h)
			if _, err := os.Lstat(filepath.Join(h.Dir, file)); (err == nil) == tt.found {
				t.Errorf("libcni's entry: %v", err)
			}
			h.clean(t)
		})
	}
}

// No executable is run for the type of a resident plugin of the daemon, not even for
// DEL, until the daemon's note is removed. Other types are run.
func TestNoExecutableRunsInPlaceOfAResidentPlugin(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	const two = `"delegates":[{"type":"bridge"},{"name":"fast","type":"macvlan"}]`
	h.mustRun(t, "ADD", two)
	h.trace()
	h.Write("state.relay/macvlan", `{"index":"10","name":"vlans","source":"external"}`)
	note := filepath.Join(ResidentState(h.state()), "macvlan")
	for _, command := range []string{"CHECK", "DEL", "ADD"} {
		err := h.run(t, command, two)
		if status.Code(err) != 11 || !strings.Contains(err.Error(), "remove "+note) {
			t.Errorf("%s: code %d: %v", command, status.Code(err), err)
		}
	}
	for _, call := range h.trace() {
		if strings.Contains(call, "macvlan") {
			t.Errorf("run: %s", call)
		}
	}
	nodetest.OK(t, os.Remove(note))
	h.mustRun(t, "DEL", two)
	if got := h.trace(); len(got) != 1 || got[0] != "DEL macvlan net1" {
		t.Errorf("%q", got)
	}
}

// With a Root, all paths in the configuration are the node's. Symbolic links are
// followed in the Root: absolute ones, dangling ones, and ones that would lead out.
// No file outside is read or written. A path may also begin with the Root.
func TestPathsAreThoseOfTheNode(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.root = filepath.Join(h.Dir, "node")
	h.Write("node/data/etc/storage.conf", `{"name":"storage","type":"macvlan"}`)
	h.Write("node/data/other/fast.conf", `{"name":"fast","type":"bridge"}`)
	h.Write("node/run/primary.conf", `{"name":"primary","type":"bridge"}`)
	h.Write("elsewhere/out.conf", `{"name":"out","type":"full"}`)
	if err := errors.Join(
		os.MkdirAll(h.root+"/etc/cni", 0o700), os.MkdirAll(h.root+"/var/lib", 0o700),
		os.Symlink("/data/etc", h.root+"/etc/cni/net.d"),
		os.Symlink("/data/other/fast.conf", h.root+"/data/etc/fast.conf"),
		os.Symlink(h.Dir+"/elsewhere/out.conf", h.root+"/data/etc/out.conf"),
		os.Symlink("../../../../../../../../../../../state", h.root+"/var/lib/cni"), // dangles
		os.Symlink("loop", h.root+"/loop"), os.Mkdir(h.root+"/opt", 0o700),
		os.MkdirAll(h.Dir+"/mnt/etc/cni", 0o700), os.MkdirAll(h.Dir+"/mnt/var", 0o700), // links stand for mounts
		os.Symlink(h.root+"/opt", h.Dir+"/mnt/opt"), os.Symlink(h.root+"/run", h.Dir+"/mnt/run"), os.Symlink(h.root+"/var/lib", h.Dir+"/mnt/var/lib"),
		os.Symlink(h.root+"/data/etc", h.Dir+"/mnt/etc/cni/net.d"),
	); err != nil {
		t.Fatal(err)
	}
	for name, conf := range map[string]string{
		"as the node has them":             `"binDir":"/opt/x","cniDir":"/var/lib/cni/multinet","confDir":"/etc/cni/net.d","clusterNetwork":"/run/primary.conf","readinessindicatorfile":"/etc/cni/net.d/fast.conf"`,
		"as this process has them":         `"binDir":"` + h.root + `/opt/x","cniDir":"` + h.root + `/var/lib/cni/multinet","confDir":"` + h.root + `/etc/cni/net.d","clusterNetwork":"` + h.root + `/run","readinessindicatorfile":"` + h.root + `/etc/cni/net.d/fast.conf"`,
		"as this process has mounted them": `"binDir":"` + h.Dir + `/mnt/opt/x","cniDir":"` + h.Dir + `/mnt/var/lib/cni/multinet","confDir":"` + h.Dir + `/mnt/etc/cni/net.d","clusterNetwork":"` + h.Dir + `/mnt/run/primary.conf","readinessindicatorfile":"` + h.Dir + `/mnt/etc/cni/net.d/fast.conf"`,
	} {
		t.Run(name, func(t *testing.T) {
			conf = `{"cniVersion":"1.1.0","name":"multi","type":"multinet",` + conf + `,` + annotated("storage,fast") + `}`
			nodetest.OK(t, h.call(t.Context(), "ADD", conf))
			if path := h.Exec.Calls()[h.seen].Path; path != "/opt/x:/opt/other/bin" {
				t.Errorf("plugins are looked for in %s", path)
			}
			wantTrace(t, h, "ADD bridge eth0", "ADD macvlan net1", "ADD bridge net2")
			if records, err := filepath.Glob(h.root + "/state/multinet/c1@*.json"); len(records) != 1 {
				t.Errorf("records %q, %v", records, err)
			}
			if dir, err := StateDir(plugin.Root(h.root), []byte(conf)); err != nil || dir != h.root+"/state/multinet" {
				t.Errorf("%q, %v", dir, err)
			}
			nodetest.OK(t, h.call(t.Context(), "DEL", conf))
			wantTrace(t, h, "DEL bridge net2", "DEL macvlan net1", "DEL bridge eth0")
		})
	}
	const cniDir = `,"cniDir":"/state"`
	for _, tt := range []struct {
		keys string
		code uint
		says string
	}{
		{`"clusterNetwork":"out","confDir":"/etc/cni/net.d"` + cniDir, 7, `"out"`},
		{`"clusterNetwork":"` + h.Dir + `/elsewhere/out.conf"` + cniDir, 7, "out.conf"},
		{bridge + `,"readinessTimeout":"0s","readinessindicatorfile":"/etc/cni/net.d/out.conf"` + cniDir, 11, "readinessindicatorfile is missing"},
		{bridge + `,"cniDir":"/proc/multinet"`, 7, "as the node has it"},
		{bridge + `,"cniDir":"` + h.root + `/var/lib/x/../cni"`, 7, "runtime keeps its own state"},
		{bridge + `,"cniDir":"/loop/x"`, 7, "too many symbolic links"},
	} {
		err := h.call(t.Context(), "ADD", `{"cniVersion":"1.1.0","name":"multi","type":"multinet",`+tt.keys+`}`)
		if err == nil {
			t.Errorf("%s: no error", tt.keys)
		}
		nodetest.Fails(t, err, tt.code, tt.says)
	}
	wantTrace(t, h)
	if files, _ := filepath.Glob(h.Dir + "/state"); len(files) > 0 {
		t.Errorf("made outside: %q", files)
	}
}

func gcFor(attachments ...string) string {
	var all []string
	for _, a := range attachments {
		container, ifname, _ := strings.Cut(a, " ")
		all = append(all, `{"containerID":"`+container+`","ifname":"`+ifname+`"}`)
	}
	return `"cni.dev/valid-attachments":[` + strings.Join(all, ",") + `]`
}

// GC deletes attachments that the runtime does not list, also if the configuration is broken,
// and tells each delegate of the configuration which of its own are valid.
func TestGC(t *testing.T) {
	t.Parallel()
	for conf, want := range map[string][]string{
		`"delegates":[{"type":"bridge"},{"type":"tuning","name":"new"}]`: {"GC bridge", "GC tuning"},
		`"clusterNetwork":"absent"`:                                      {"GC bridge"},
	} {
		h := newHost(t, "1.1.0")
		second := func(a *skel.CmdArgs) { a.ContainerID = "c2" }
		h.mustRun(t, "ADD", keys(bridge, annotated("storage")))
		h.mustRun(t, "ADD", bridge, second)
		h.trace()
		if err := h.run(t, "GC", keys(conf, gcFor("c2 eth0"))); err != nil {
			nodetest.Fails(t, err, 7, `"absent"`)
		}
		calls := h.Exec.Calls()
		wantTrace(t, h, append([]string{"DEL tuning net1", "DEL macvlan net1", "DEL bridge eth0"}, want...)...)
		for _, c := range calls[len(calls)-len(want):] {
			valid := map[string]string{"bridge": `{"containerID":"c2","ifname":"eth0"}`, "tuning": ""}[c.Plugin]
			if !strings.Contains(string(c.Stdin), `"cni.dev/valid-attachments":[`+valid+`]`) {
				t.Errorf("%s with %s", c, c.Stdin)
			}
		}
		h.mustRun(t, "DEL", bridge, second)
		h.clean(t)
	}
}

// A mistake in a definition can make both ADD and DEL fail. A sweep removes what is
// recorded of such an ADD once the definition is mended: that of the pod's namespace, with
// what the pod has asked for, and with the device that the record has. A network in a claim
// cannot change: another one of its name is not tried.
func TestSweepUsesTheDefinitionAsItIsNow(t *testing.T) {
	t.Parallel()
	config := func(mode string) string { return `{"name":"net","type":"strict","mode":"` + mode + `"}` }
	removed, failed := lifecycle.Sweep{Removed: 1}, lifecycle.Sweep{Failed: 1}
	asked := annotated(`[{"name":"vf","cni-args":{"k":1}}]`)
	cluster := func(mode string) func(context.Context, nad.Ref, nad.Use) (nad.Definition, error) {
		return func(_ context.Context, r nad.Ref, use nad.Use) (nad.Definition, error) {
			if use != nad.Selected && use != nad.Claimed {
				return nad.Definition{}, &netconf.Error{Kind: netconf.ErrNotFound}
			}
			return nad.Definition{Ref: r, Resource: vf, Config: config(mode + "-of-" + r.Namespace)}, nil
		}
	}
	silent := func(ctx context.Context, _ nad.Ref, _ nad.Use) (nad.Definition, error) {
		<-ctx.Done()
		return nad.Definition{}, ctx.Err()
	}
	type find = func(context.Context, nad.Ref, nad.Use) (nad.Definition, error)
	for name, tt := range map[string]struct {
		keys     string
		selects  string // the annotation
		claim    Claimed
		file     string // the definition is mended in it
		was, now find   // of a cluster, at the ADD and at the sweep
		want     string // modes of the DELs
		swept    lifecycle.Sweep
	}{
		"not mended":                             {selects: asked, want: "typo", swept: failed},
		"in a file":                              {selects: asked, file: "net.d/a/vf.conf", want: "typo right", swept: removed},
		"in the file of another namespace":       {selects: asked, file: "net.d/b/vf.conf", want: "typo", swept: failed},
		"with plugins that it may not have":      {selects: asked, keys: `"allowedTypes":{"nad":["other"]},`, file: "net.d/a/vf.conf", want: "typo", swept: failed},
		"in a cluster, with a device":            {selects: asked, was: cluster("typo"), now: cluster("right"), want: "typo-of-a dev0 right-of-a dev0", swept: removed},
		"in a cluster that does not answer":      {selects: asked, now: silent, want: "typo", swept: failed},
		"of a claim":                             {claim: claimed("c", "r", "a/vf", ""), was: cluster("typo"), now: cluster("right"), want: "typo-of-a dev0 right-of-a dev0", swept: removed},
		"of a claim, which may not have plugins": {claim: claimed("c", "r", "a/vf", ""), keys: `"allowedTypes":{"nad":["other"]},`, was: cluster("typo"), now: cluster("right"), want: "typo-of-a dev0", swept: failed},
		"a network in a claim":                   {claim: claimed("c", "r", config("typo"), ""), file: "net.d/net.conf", want: "typo", swept: failed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			var tried []string
			h.Exec.Plugins["strict"] = func(_ context.Context, c delegatetest.Call) ([]byte, error) {
				var conf struct {
					Mode, DeviceID string
					Args           struct{ CNI map[string]int }
				}
				nodetest.OK(t, json.Unmarshal(c.Stdin, &conf))
				if c.Command == "DEL" {
					tried = append(tried, strings.TrimSpace(conf.Mode+" "+conf.DeviceID))
				}
				if strings.HasPrefix(conf.Mode, "typo") || tt.selects != "" && conf.Args.CNI["k"] != 1 {
					return nil, errors.New("no such mode")
				}
				return nil, nil
			}
			h.Write("net.d/a/vf.conf", config("typo"))
			devices := 0
			h.cluster = withDevices(&devices, "dev0")
			h.cluster.Definition = tt.was
			selects := tt.selects
			if selects == "" {
				h.cluster, selects = h.cluster.with(tt.claim), passedNothing
			}
			if err := h.run(t, "ADD", keys(bridge, selects), podOf("a")); err == nil {
				t.Fatal("success")
			}
			if tt.file != "" {
				h.Write(tt.file, config("right"))
			}
			h.cluster.Definition, tried = tt.now, nil
			s := &lifecycle.Sweeper{}
			nodetest.OK(t, PrepareSweep(t.Context(), s, h.process(), h.cluster, []byte(h.conf(tt.keys+bridge)), ""))
			swept, err := s.Sweep(t.Context())
			if err != nil || swept != tt.swept {
				t.Errorf("%+v, %v, want %+v", swept, err, tt.swept)
			}
			nodetest.Equal(t, "DELs", strings.Join(tried, " "), tt.want)
		})
	}
}
