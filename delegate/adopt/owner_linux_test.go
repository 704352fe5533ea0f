package adopt_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
)

// newNetNS makes a namespace with an interface of that MAC and address.
func newNetNS(t *testing.T, mac, address string) string {
	t.Helper()
	path, remove, err := delegatetest.NewNetNS("", "")
	if err != nil {
		t.Skipf("needs the right to make a network namespace: %v", err)
	}
	t.Cleanup(remove)
	err = ns.WithNetNSPath(path, func(ns.NetNS) error {
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

// A container has what its result says: its MAC address, under whatever name, or
// its IP address. A namespace that has neither is another's, and is not touched.
// Where nothing can be compared it is left as it is.
func TestWhoseContainerItIs(t *testing.T) {
	t.Parallel()
	netns := newNetNS(t, "02:00:00:00:00:01", "10.1.0.5/24")
	inside := func(mac string) string {
		return fmt.Sprintf(`"interfaces":[{"name":"br0","mac":"02:00:00:00:00:01"},{"name":"eth0","mac":%q,"sandbox":"/x"}]`, mac)
	}
	for _, tt := range []struct {
		name, result string
		gone         bool
	}{
		{"its MAC address", `{` + inside("02:00:00:00:00:01") + `}`, false},
		{"in another notation", `{` + inside("02-00-00-00-00-01") + `}`, false},
		{"another MAC address", `{` + inside("02:00:00:00:00:02") + `}`, true},
		{"another MAC address and its IP address", `{` + inside("02:00:00:00:00:02") + `,"ips":[{"interface":1,"address":"10.1.0.5/24"}]}`, false},
		{"its MAC address and another IP address", `{` + inside("02:00:00:00:00:01") + `,"ips":[{"interface":1,"address":"10.1.0.6/24"}]}`, false},
		{"nothing of both", `{` + inside("02:00:00:00:00:02") + `,"ips":[{"interface":1,"address":"10.1.0.6/24"}]}`, true},
		{"an IP address alone", `{"ips":[{"address":"10.1.0.5/24"}]}`, false},
		{"another IP address alone", `{"ips":[{"address":"fd00::1/64"}]}`, true},
		{"the host's end alone", `{"interfaces":[{"name":"br0","mac":"02:00:00:00:00:09"}],"ips":[{"interface":0,"address":"10.1.0.1/24"}]}`, false},
		{"an interface that is not there", `{"ips":[{"interface":7,"address":"10.1.0.6/24"}]}`, true},
		{"no MAC address", `{` + inside("") + `}`, false},
		{"a MAC address that is none", `{` + inside("x") + `}`, false},
		{"nothing", `{"dns":{}}`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.Write("cni/results/cbr-c1-eth0", fmt.Sprintf(`{"kind":"cniCacheV1","containerId":"c1","config":%q,"ifName":"eth0","networkName":"cbr","netns":%q,"result":%s}`,
				b64(cbr), netns, `{"cniVersion":"1.0.0",`+tt.result[1:]))
			for a, err := range w.node.Attachments() {
				nodetest.OK(t, err)
				want := netns
				if tt.gone {
					want = ""
				}
				if a.Gone != tt.gone || a.Attached[0].NetNS != want {
					t.Errorf("gone %t, namespace %q", a.Gone, a.Attached[0].NetNS)
				}
			}
		})
	}
}

// What is no namespace, or is somewhere this process does not see, tells
// nothing.
func TestWhatIsNoNamespaceTellsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := w.Write("netns/file", "")
	for path, gone := range map[string]bool{
		file: false, filepath.Dir(file): false, "/proc/self/ns/uts": false, "relative/c1": false, unseen: false, file + "/x": false,
		w.Path("netns/absent"): true,
	} {
		w.Write("cni/results/cbr-c1-eth0", fmt.Sprintf(`{"kind":"cniCacheV1","containerId":"c1","config":%q,"ifName":"eth0","networkName":"cbr","netns":%q,"result":%s}`,
			b64(cbr), path, `{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.5/24"}]}`))
		for a, err := range w.node.Attachments() {
			if err != nil || a.Gone != gone {
				t.Errorf("%s: gone %t, %v", path, a.Gone, err)
			}
		}
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}
