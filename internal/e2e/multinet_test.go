package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	"github.com/metacni/metacni/examples/lab/host"
)

var versions = []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}

const annotation = "k8s.v1.cni.cncf.io/networks"

// TestMultinetWorksInEveryVersion attaches a pod to bridge and host-local as a
// delegate, and by annotation to macvlan and to a list of bridge and tuning, in
// every version of the protocol, and detaches it as containerd does.
func TestMultinetWorksInEveryVersion(t *testing.T) {
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			w := newWorld(t)
			card, index := w.uplink()
			w.needs(&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{ParentIndex: index}})
			fast, storage := w.name("fast"), w.name("storage")
			w.network(fast, object{
				"cniVersion": "0.4.0", "type": "macvlan", "master": card,
				"ipam": object{"type": "host-local", "subnet": w.net(8) + ".0/24"},
			})
			bridge := w.bridge(9)
			delete(bridge["ipam"].(object), "routes")
			w.network(storage, object{"cniVersion": "1.0.0", "plugins": []object{bridge, {
				"type": "tuning", "mtu": 1400, "sysctl": object{"net.ipv4.conf.IFNAME.arp_filter": "1"},
			}}})
			p := w.pod(w.multinet(version, w.bridge(1)))
			p.annotations = map[string]string{annotation: fast + "@fast0," + storage, "other": "annotation"}

			w.ok("ADD", p)
			same(t, "interfaces", []string{"eth0", "fast0", "net2"}, w.interfaces(p))
			same(t, "leases", 3, len(w.leases()))
			r := decode(t, p, version)
			if len(r.IPs) != 1 || r.IPs[0].Address.IP.String() != w.net(1)+".2" {
				t.Errorf("the result is not the first network's: %s", p.result)
			}
			w.answersPing(p, w.net(1)+".1")
			w.mtu(p, "net2", 1400)

			w.checks(version, p)
			w.ok("DEL", p)
			same(t, "interfaces after DEL", nil, w.interfaces(p))
			w.nothingLeft()
			w.vanish(p)
			w.ok("DEL", p, withoutNetNS)
			w.nothingLeft()
		})
	}
}

// TestSelectionReachesTheDelegates: the delegates get what a pod's annotation
// asks for, as capability arguments and as args.cni.
func TestSelectionReachesTheDelegates(t *testing.T) {
	w := newWorld(t)
	selected := w.name("selected")
	w.network(selected, object{"cniVersion": "1.0.0", "plugins": []object{
		w.with(w.bridge(7), object{
			"capabilities": object{"ips": true, "mac": true},
			"ipam":         object{"type": "static"},
		}),
		w.with(w.fake("seen"), object{"capabilities": object{"portMappings": true, "mac": true}}),
	}})
	p := w.pod(w.multinet("1.1.0", w.bridge(1)))
	p.annotations = map[string]string{annotation: fmt.Sprintf(`[{"name": %q, "interface": "sel0",
		"mac": "02:00:00:00:77:01", "ips": ["%s.77/24"],
		"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
		"cni-args": {"colour": "blue"}}]`, selected, w.net(7))}
	w.ok("ADD", p)
	same(t, "interfaces", []string{"eth0", "sel0"}, w.interfaces(p))
	i := w.find(p, "sel0")
	same(t, "MAC", "02:00:00:00:77:01", i.MAC)
	if want := netip.MustParsePrefix(w.net(7) + ".77/24"); !slices.Contains(i.Addresses, want) {
		t.Errorf("addresses %v, want %v", i.Addresses, want)
	}
	calls := w.calls()
	if len(calls) != 1 {
		t.Fatalf("%d calls of the fake", len(calls))
	}
	var stdin struct {
		RuntimeConfig struct {
			MAC          string
			PortMappings []struct{ HostPort int }
		}
		Args struct{ CNI struct{ Colour string } }
	}
	if err := decodeOne(calls[0].Stdin, &stdin); err != nil {
		t.Fatal(err)
	}
	same(t, "runtimeConfig.mac", "02:00:00:00:77:01", stdin.RuntimeConfig.MAC)
	same(t, "args.cni.colour", "blue", stdin.Args.CNI.Colour)
	if m := stdin.RuntimeConfig.PortMappings; len(m) != 1 || m[0].HostPort != 8080 {
		t.Errorf("runtimeConfig.portMappings = %v", m)
	}
	w.ok("DEL", p)
	w.nothingLeft()
}

// TestDefaultRouteMovesToTheSelectedNetwork: the default route goes to the
// network that the pod selects for it, and results of every version say so.
func TestDefaultRouteMovesToTheSelectedNetwork(t *testing.T) {
	for _, version := range []string{"0.1.0", "0.2.0", "0.4.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			w := newWorld(t)
			exit := w.name("exit")
			bridge := w.bridge(2)
			delete(bridge["ipam"].(object), "routes")
			bridge["cniVersion"] = "1.0.0"
			w.network(exit, bridge)
			p := w.pod(w.multinet(version, w.bridge(1)))
			p.annotations = map[string]string{annotation: fmt.Sprintf(`[{"name": %q, "default-route": ["%s.1"]}]`, exit, w.net(2))}
			w.ok("ADD", p)
			same(t, "default routes", []string{w.net(2) + ".1 dev net1"}, w.defaultRoutes(p))
			w.answersPing(p, w.net(2)+".1")
			w.answersPing(p, w.net(1)+".1")
			for _, r := range decode(t, p, version).Routes {
				if ones, _ := r.Dst.Mask.Size(); ones == 0 {
					t.Errorf("the result still has the default route %v: %s", r, p.result)
				}
			}
			if version >= "0.4.0" {
				w.ok("CHECK", p)
			}
			w.ok("DEL", p, withoutNetNS)
			w.nothingLeft()
		})
	}
}

// TestTakenNameIsFoundBeforeAnythingRuns: an interface name that is in use in
// the namespace, even as an alternative name, is refused before any plugin
// runs, and never chosen.
func TestTakenNameIsFoundBeforeAnythingRuns(t *testing.T) {
	w := newWorld(t)
	blue := w.name("blue")
	w.network(blue, w.with(w.fake("blue"), object{"cniVersion": "1.0.0"}))
	p := w.pod(w.multinet("1.0.0", w.fake("first")))
	err := host.Do(p.netns, func() error {
		lo, err := netlinksafe.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkAddAltName(lo, "net1")
	})
	if err != nil {
		t.Skipf("this kernel has no alternative interface names: %v", err)
	}
	p.annotations = map[string]string{annotation: blue + "@net1"}
	w.fails(7, "ADD", p, []string{"net1"})
	w.trace()
	w.nothingLeft()

	p.annotations = map[string]string{annotation: blue}
	w.ok("ADD", p)
	w.trace("ADD first eth0", "ADD blue net2")
	w.ok("DEL", p)
	w.nothingLeft()
}

// TestPortmapAndFirewallWork: a port is published and the firewall is set up as
// in containerd's default configuration.
func TestPortmapAndFirewallWork(t *testing.T) {
	w := newWorld(t)
	w.needsRules()
	p := w.pod(w.multinet("1.0.0", object{"name": w.name("chain"), "cniVersion": "1.0.0", "plugins": []object{
		w.with(w.bridge(1), object{"ipMasq": true}),
		{"type": "portmap", "capabilities": object{"portMappings": true}},
		{"type": "firewall", "backend": "iptables"},
		{"type": "bandwidth", "ingressRate": 1 << 20, "ingressBurst": 1 << 20},
	}}))
	p.conf["capabilities"].(object)["portMappings"] = true
	ports := func(_ map[string]string, conf object) {
		conf["runtimeConfig"] = object{"portMappings": []object{{"HostPort": 8080 + w.n, "ContainerPort": 80, "Protocol": "tcp"}}}
	}
	w.ok("ADD", p, ports)
	w.ok("CHECK", p, ports)
	w.ok("DEL", p, ports)
	w.nothingLeft()
	w.vanish(p)
	w.ok("DEL", p, ports, withoutNetNS)
}

// TestOtherReferencePluginsWork delegates to the reference plugins that no
// other test uses.
func TestOtherReferencePluginsWork(t *testing.T) {
	for name, conf := range map[string]func(w *world) object{
		"ptp": func(w *world) object {
			return object{"type": "ptp", "ipam": object{"type": "host-local", "subnet": w.net(3) + ".0/24"}}
		},
		"host-device": func(w *world) object {
			card, _ := w.uplink()
			return object{"type": "host-device", "device": card}
		},
		"tap": func(w *world) object {
			w.needs(&netlink.Tuntap{Mode: netlink.TUNTAP_MODE_TAP})
			return object{"type": "tap", "ipam": object{"type": "static", "addresses": []object{{"address": w.net(4) + ".2/24"}}}}
		},
		"loopback": func(*world) object { return object{"type": "loopback"} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := w.pod(w.multinet("1.0.0", w.bridge(1), conf(w)))
			before, err := host.Interfaces("")
			if err != nil {
				t.Fatal(err)
			}
			w.ok("ADD", p)
			want := []string{"eth0", "net1"}
			if name == "loopback" {
				want = want[:1] // it attaches lo
			}
			same(t, "interfaces", want, w.interfaces(p))
			w.ok("CHECK", p)
			w.ok("DEL", p)
			same(t, "interfaces after DEL", nil, w.interfaces(p))
			w.nothingLeft()
			for _, i := range before {
				if _, err := netlinksafe.LinkByName(i.Name); err != nil && strings.HasPrefix(i.Name, w.name("up")) {
					t.Errorf("%s was not given back: %v", i.Name, err)
				}
			}
		})
	}
}

// TestLabRuns runs the demo with the executables that the tests built.
func TestLabRuns(t *testing.T) {
	w := newWorld(t)
	a := w.lab()
	if a.code != 0 {
		t.Fatalf("exit status %d:\n%s%s", a.code, a.stdout, a.stderr)
	}
	t.Logf("%s", a.stdout)
}

// with returns a copy of conf with the keys of more.
func (w *world) with(conf, more object) object {
	maps.Copy(conf, more)
	return conf
}

// uplink creates a network card on the host.
func (w *world) uplink() (name string, index int) {
	w.t.Helper()
	name = w.name("up")
	index, err := host.Uplink(name)
	if err != nil {
		w.t.Fatal(err)
	}
	return name, index
}

func (w *world) answersPing(p *pod, addr string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	if _, err := host.Ping(ctx, p.netns, netip.MustParseAddr(addr)); err != nil {
		w.t.Error(err)
	}
}

func (w *world) find(p *pod, name string) host.Interface {
	w.t.Helper()
	ifs, err := host.Interfaces(p.netns)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, i := range ifs {
		if i.Name == name {
			return i
		}
	}
	w.t.Fatalf("no interface %s in %v", name, ifs)
	return host.Interface{}
}

func (w *world) mtu(p *pod, name string, want int) {
	w.t.Helper()
	if got := w.find(p, name).MTU; got != want {
		w.t.Errorf("MTU of %s is %d, want %d", name, got, want)
	}
}

func (w *world) defaultRoutes(p *pod) (list []string) {
	w.t.Helper()
	err := host.Do(p.netns, func() error {
		routes, err := netlinksafe.RouteList(nil, netlink.FAMILY_V4)
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
	if err != nil {
		w.t.Fatal(err)
	}
	return list
}
