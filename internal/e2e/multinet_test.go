package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	"github.com/metacni/metacni/examples/lab/host"
	"github.com/metacni/metacni/internal/dump"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// TestPluginsWorkInEveryVersion attaches a pod with real plugins in every version of the
// protocol, checks it, and detaches it as containerd does. multinet delegates to bridge and
// host-local, and by annotation to macvlan and to a list of bridge and tuning. flannel has
// a subnet of each family. The third of three choices of fallback works, and nothing is
// left of the others.
func TestPluginsWorkInEveryVersion(t *testing.T) {
	for plugin, tt := range map[string]struct {
		pod        func(n *node, version string) *pod
		interfaces []string
		addresses  int // of the result
		leases     int
		mtu        int // of the last interface
	}{
		"multinet": {func(n *node, version string) *pod {
			card, index := n.uplink()
			n.needs(&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{ParentIndex: index}})
			n.network("fast", object{"cniVersion": "0.4.0", "type": "macvlan", "master": card, "ipam": n.bridge(8)["ipam"]})
			n.network("storage", object{"cniVersion": "1.0.0", "plugins": []object{n.routeless(9), {
				"type": "tuning", "mtu": 1400, "sysctl": object{"net.ipv4.conf.IFNAME.arp_filter": "1"},
			}}})
			return n.pod(n.multinet(version, n.bridge(1))).selects("fast@fast0,storage")
		}, []string{"eth0", "fast0", "net2"}, 1, 3, 1400},
		"flannel": {func(n *node, version string) *pod {
			n.subnetEnv()
			return n.pod(n.flannel(version, object{"bridge": n.name("br1-"), "isDefaultGateway": true}))
		}, []string{"eth0"}, 2, 2, 1450},
		"fallback": {func(n *node, version string) *pod {
			absent := object{"type": "macvlan", "master": n.name("absent"), "ipam": n.bridge(3)["ipam"]}
			chain := n.with(n.chain(2, n.bridge(2), n.fake("f", "ADD", "fail")), object{"cniVersion": version})
			return n.pod(n.fallback(version, absent, chain, n.bridge(1)))
		}, []string{"eth0"}, 1, 1, 1500},
	} {
		for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
			t.Run(plugin+"/"+version, func(t *testing.T) {
				n := newNode(t)
				p := tt.pod(n, version)
				if version == "1.1.0" {
					n.ok("STATUS", p)
				}
				n.ok("ADD", p)
				nodetest.Equal(t, "interfaces", n.interfaces(p), tt.interfaces)
				nodetest.Equal(t, "leases", len(n.leases()), tt.leases)
				r := decode(t, p, version)
				if len(r.IPs) != tt.addresses || r.IPs[0].Address.String() != n.net(1)+".2/24" {
					t.Errorf("result %s", p.result)
				}
				n.answersFrom(p, n.net(1)+".1")
				nodetest.Equal(t, "MTU", n.find(p, tt.interfaces[len(tt.interfaces)-1]).MTU, tt.mtu)
				if version == "1.1.0" {
					n.ok("GC", p, valid(p))
				}
				if version == "0.3.1" { // the specification has CHECK from 0.4.0 on
					n.fails(1, "CHECK", p, nil)
				} else {
					n.ok("CHECK", p)
				}
				nodetest.OK(t, os.RemoveAll(n.file("subnet.env"))) // DEL uses the configuration that ADD made
				delete(p.conf, "choices")
				n.ok("DEL", p)
				n.gone(p)
				n.vanish(p)
				n.ok("DEL", p, withoutNetNS)
				n.gone(p)
			})
		}
	}
}

// flannel returns a configuration of the flannel plugin.
func (n *node) flannel(version string, delegate object) object {
	return object{
		"cniVersion": version, "name": n.name("flan"), "type": "flannel",
		"subnetFile": n.file("subnet.env"), "dataDir": n.file("flannel"), "delegate": delegate,
	}
}

// subnetEnv writes the file of flanneld, with the node's range 1 and one of IPv6.
func (n *node) subnetEnv() {
	n.Helper()
	nodetest.OK(n, os.WriteFile(n.file("subnet.env"), fmt.Appendf(nil, "FLANNEL_NETWORK=10.%d.0.0/16\nFLANNEL_SUBNET=%s.1/24\n"+
		"FLANNEL_IPV6_NETWORK=fd00:%d::/48\nFLANNEL_IPV6_SUBNET=fd00:%d:0:1::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n",
		n.id%256, n.net(1), n.id, n.id), 0o600))
}

// fallback returns a configuration of fallback with these choices.
func (n *node) fallback(version string, choices ...object) object {
	return object{"cniVersion": version, "name": n.name("fall"), "type": "fallback", "choices": choices, "cniDir": n.file("state")}
}

// TestSelectionReachesTheDelegates: the delegates get what a pod's annotation
// asks for, as capability arguments and as args.cni.
func TestSelectionReachesTheDelegates(t *testing.T) {
	n := newNode(t)
	n.network("selected", object{"cniVersion": "1.0.0", "plugins": []object{
		n.with(n.bridge(7), object{"capabilities": object{"ips": true, "mac": true}, "ipam": object{"type": "static"}}),
		n.with(n.fake("seen"), object{"capabilities": object{"portMappings": true, "mac": true}}),
	}})
	p := n.pod(n.multinet("1.1.0", n.bridge(1))).selects(fmt.Sprintf(`[{"name": "selected", "interface": "sel0",
		"mac": "02:00:00:00:77:01", "ips": ["%s.77/24"],
		"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
		"cni-args": {"colour": "blue"}}]`, n.net(7)))
	n.ok("ADD", p)
	nodetest.Equal(t, "interfaces", n.interfaces(p), []string{"eth0", "sel0"})
	i := n.find(p, "sel0")
	nodetest.Equal(t, "MAC", i.MAC, "02:00:00:00:77:01")
	if want := netip.MustParsePrefix(n.net(7) + ".77/24"); !slices.Contains(i.Addresses, want) {
		t.Errorf("addresses %v, want %v", i.Addresses, want)
	}
	n.trace("ADD seen sel0")
	var stdin struct{ RuntimeConfig, Args any }
	nodetest.OK(t, decodeOne(n.calls()[0].Stdin, &stdin))
	nodetest.Equal(t, "args", stdin.Args, any(object{"cni": object{"colour": "blue"}}))
	nodetest.Equal(t, "runtimeConfig", stdin.RuntimeConfig, any(object{
		"mac": "02:00:00:00:77:01", "portMappings": []any{object{"hostPort": 8080.0, "containerPort": 80.0, "protocol": "tcp"}},
	}))
	n.ok("DEL", p)
	n.gone(p)
}

// TestDefaultRouteMovesToTheSelectedNetwork: the default route goes to the
// network that the pod selects for it, and results of every version say so.
func TestDefaultRouteMovesToTheSelectedNetwork(t *testing.T) {
	for _, version := range []string{"0.1.0", "0.2.0", "0.4.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			n := newNode(t)
			n.network("exit", n.with(n.routeless(2), object{"cniVersion": "1.0.0"}))
			p := n.pod(n.multinet(version, n.bridge(1)))
			p.selects(fmt.Sprintf(`[{"name": "exit", "default-route": ["%s.1"]}]`, n.net(2)))
			n.ok("ADD", p)
			nodetest.Equal(t, "default routes", n.defaultRoutes(p), []string{n.net(2) + ".1 dev net1"})
			n.answersFrom(p, n.net(2)+".1")
			n.answersFrom(p, n.net(1)+".1")
			for _, r := range decode(t, p, version).Routes {
				if ones, _ := r.Dst.Mask.Size(); ones == 0 {
					t.Errorf("the result still has the default route %v: %s", r, p.result)
				}
			}
			if version >= "0.4.0" {
				n.ok("CHECK", p)
			}
			n.ok("DEL", p, withoutNetNS)
			n.gone(p)
		})
	}
}

// TestOtherReferencePluginsWork delegates to the reference plugins that no
// other test uses.
func TestOtherReferencePluginsWork(t *testing.T) {
	for name, conf := range map[string]func(n *node) object{
		"ptp": func(n *node) object { return object{"type": "ptp", "ipam": n.bridge(3)["ipam"]} },
		"host-device": func(n *node) object {
			card, _ := n.uplink()
			return object{"type": "host-device", "device": card}
		},
		"tap": func(n *node) object {
			n.needs(&netlink.Tuntap{Mode: netlink.TUNTAP_MODE_TAP})
			return object{"type": "tap", "ipam": object{"type": "static", "addresses": []object{{"address": n.net(4) + ".2/24"}}}}
		},
		"bandwidth": func(n *node) object {
			return n.chain(2, n.routeless(2), object{"type": "bandwidth", "ingressRate": 1 << 20, "ingressBurst": 1 << 20})
		},
		"loopback": func(*node) object { return object{"type": "loopback"} },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			first := n.bridge(1)
			if name == "ptp" {
				first = n.routeless(1)
			}
			p := n.pod(n.multinet("1.0.0", first, conf(n)))
			n.ok("ADD", p)
			want := []string{"eth0", "net1"}
			if name == "loopback" {
				want = want[:1] // it attaches lo
			}
			nodetest.Equal(t, "interfaces", n.interfaces(p), want)
			n.ok("CHECK", p)
			n.ok("DEL", p)
			n.gone(p)
			if _, err := netlinksafe.LinkByName(n.name("up")); name == "host-device" && err != nil {
				t.Errorf("the device was not given back: %v", err)
			}
		})
	}
}

// TestLabRuns runs the demo with the executables that the tests built.
func TestLabRuns(t *testing.T) {
	n := newNode(t)
	cmd := exec.CommandContext(t.Context(), built("lab"), "-bin", n.bin)
	cmd.Env = []string{"PATH=" + n.path}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
}

// routeless returns bridge without a default route.
func (n *node) routeless(i int) object {
	conf := n.bridge(i)
	delete(conf["ipam"].(object), "routes")
	return conf
}

// uplink creates a network card on the host.
func (n *node) uplink() (name string, index int) {
	n.Helper()
	name = n.name("up")
	index, err := host.Uplink(name)
	nodetest.OK(n, err)
	return name, index
}

func (n *node) answersFrom(p *pod, addr string) {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), 5*time.Minute)
	defer cancel()
	if _, err := host.Reach(ctx, p.netns, netip.MustParseAddr(addr)); err != nil {
		n.Error(err)
	}
}

func (n *node) find(p *pod, name string) host.Interface {
	n.Helper()
	ifs, err := host.Interfaces(p.netns)
	nodetest.OK(n, err)
	for _, i := range ifs {
		if i.Name == name {
			return i
		}
	}
	n.Fatalf("no interface %s in %v", name, ifs)
	return host.Interface{}
}

func (n *node) defaultRoutes(p *pod) (list []string) {
	n.Helper()
	err := host.Do(p.netns, func() error {
		routes, err := dump.Whole(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_V4) })
		if err != nil {
			return err
		}
		for _, r := range routes {
			if r.Dst != nil {
				if ones, _ := r.Dst.Mask.Size(); ones > 0 {
					continue
				}
			}
			l, err := netlink.LinkByIndex(r.LinkIndex)
			if err != nil {
				return err
			}
			list = append(list, fmt.Sprintf("%s dev %s", r.Gw, l.Attrs().Name))
		}
		return nil
	})
	nodetest.OK(n, err)
	return list
}
