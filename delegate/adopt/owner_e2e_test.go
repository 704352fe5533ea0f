//go:build e2e && linux

package adopt_test

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// newNetNS makes a namespace with an interface of that MAC and address.
func newNetNS(t *testing.T, mac, address string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "netns")
	nodetest.NetNS(t, path)
	err := ns.WithNetNSPath(path, func(ns.NetNS) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "other0"
		attrs.HardwareAddr, _ = net.ParseMAC(mac)
		link := &netlink.Bridge{LinkAttrs: attrs}
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		to, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(link, to)
	})
	if err != nil {
		t.Skipf("needs a kernel with bridges: %v", err)
	}
	return path
}

// A path is the container's if its namespace has what the result says: its MAC address, under
// whatever name, or its IP address. Otherwise the adoption has no path, and the container is
// attached all the same: it may have moved its interfaces.
func TestWhoseContainerItIs(t *testing.T) {
	t.Parallel()
	netns := newNetNS(t, "02:00:00:00:00:01", "10.1.0.5/24")
	inside := func(mac string) string {
		return fmt.Sprintf(`"interfaces":[{"name":"br0","mac":"02:00:00:00:00:01"},{"name":"eth0","mac":%q,"sandbox":"/x"}]`, mac)
	}
	for name, tt := range map[string]struct {
		result string
		lost   bool // the path
	}{
		"its MAC address":                        {`{` + inside("02:00:00:00:00:01") + `}`, false},
		"in another notation":                    {`{` + inside("02-00-00-00-00-01") + `}`, false},
		"another MAC address":                    {`{` + inside("02:00:00:00:00:02") + `}`, true},
		"another MAC address and its IP address": {`{` + inside("02:00:00:00:00:02") + `,"ips":[{"interface":1,"address":"10.1.0.5/24"}]}`, false},
		"its MAC address and another IP address": {`{` + inside("02:00:00:00:00:01") + `,"ips":[{"interface":1,"address":"10.1.0.6/24"}]}`, false},
		"nothing of both":                        {`{` + inside("02:00:00:00:00:02") + `,"ips":[{"interface":1,"address":"10.1.0.6/24"}]}`, true},
		"an IP address alone":                    {`{"ips":[{"address":"10.1.0.5/24"}]}`, false},
		"another IP address alone":               {`{"ips":[{"address":"fd00::1/64"}]}`, true},
		"the host's end alone":                   {`{"interfaces":[{"name":"br0","mac":"02:00:00:00:00:09"}],"ips":[{"interface":0,"address":"10.1.0.1/24"}]}`, true},
		"an interface that is not there":         {`{"ips":[{"interface":7,"address":"10.1.0.6/24"}]}`, true},
		"no MAC address":                         {`{` + inside("") + `}`, true},
		"nothing":                                {`{"dns":{}}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.Write("cni/results/cbr-c1-eth0", strings.Replace(text("cniCacheV1", "c1", cbr, `{"cniVersion":"1.0.0",`+tt.result[1:]), unseen, netns, 1))
			for a, err := range w.node.Attachments() {
				nodetest.OK(t, err)
				nodetest.Equal(t, "namespace", a.Attached[0].NetNS, map[bool]string{false: netns}[tt.lost])
			}
		})
	}
}

// All networks of a container have the path that is confirmed, or at which nothing is: another one
// may lead to another container by now.
func TestNamespaceOfEachNetworkIsTheSame(t *testing.T) {
	t.Parallel()
	others, own := newNetNS(t, "02:00:00:00:00:01", "10.1.0.5/24"), newNetNS(t, "02:00:00:00:00:02", "10.1.0.6/24")
	for _, tt := range []struct{ name, first, second, want string }{
		{"one is gone, one is another's", unseen, others, unseen},
		{"one is another's, one is gone", others, unseen, unseen},
		{"one is another's", others, own, own},
		{"one is gone", unseen, own, own},
		{"both are another's", others, others, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.old(w.Write("multus/c1", "["+saved(cbr, "")+","+saved(storage, "")+"]"))
			const result = `{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.6/24"}]}`
			w.Write("multus/results/cbr-c1-eth0", strings.Replace(text("cniCacheV1", "c1", cbr, result), unseen, tt.first, 1))
			w.Write("multus/results/storage-c1-net1", strings.NewReplacer(unseen, tt.second, `"cbr"`, `"storage"`, `"eth0"`, `"net1"`).Replace(
				text("cniCacheV1", "c1", asList(t, nodetest.Parse(storage)), result)))
			for a, err := range w.node.Attachments() {
				nodetest.OK(t, err)
				for _, d := range a.Attached {
					nodetest.Equal(t, d.IfName, d.NetNS, tt.want)
				}
				nodetest.Equal(t, "attached", len(a.Attached), 2)
			}
		})
	}
}
