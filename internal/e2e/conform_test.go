package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/examples/lab/host"
	"github.com/metacni/metacni/internal/nodetest"
)

// findings are the checks that each of the reference plugins, v1.9.1, fails.
// README.md explains them.
var findings = []string{
	"chain", "del-broken", "error-version", "gc", "gc-error", "undo", "undo-garbage", "undo-killed", "undo-silence", "undo-two-documents",
}

// TestConformFindsWhatReferencePluginsLack: the conformance checks find exactly
// the known defects in plugins that create interfaces and delegate address
// management.
func TestConformFindsWhatReferencePluginsLack(t *testing.T) {
	for _, name := range []string{"bridge", "macvlan", "ptp"} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.program("iptables")
			conf := object{"name": n.name(name), "type": name, "ipMasq": true, "ipam": object{"type": "host-local"}}
			switch name {
			case "bridge":
				conf["bridge"], conf["isGateway"] = n.name("br-"), true
			case "macvlan":
				master := n.name("card")
				index, err := host.Uplink(master)
				nodetest.OK(t, err)
				n.needs(&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{ParentIndex: index}, Mode: netlink.MACVLAN_MODE_BRIDGE})
				conf["master"] = master
			}
			stdin, err := json.Marshal(conf)
			nodetest.OK(t, err)
			conform(t, delegatetest.Binary{Path: built(name), Env: []string{"PATH=" + n.path}}, delegatetest.Config{
				Stdin:     func(string) string { return string(stdin) },
				Delegates: []string{"host-local"},
				Fakes:     map[string]delegatetest.Plugin{"host-local": n.addresses},
				NetNS:     delegatetest.NewNetNS,
			}, findings...)
		})
	}
}

// TestExamplesConform: the built examples pass every conformance check in real
// namespaces.
func TestExamplesConform(t *testing.T) {
	const several = `"delegates":[{"type":"bridge"}, {"name":"storage","plugins":[{"type":"macvlan"},{"type":"tuning"}]}, {"type":"ipvlan"}]`
	delegates := []string{"bridge", "macvlan", "tuning", "ipvlan"}
	for name, tt := range map[string]struct {
		program   string
		conf      string // DIR is a directory of the container, NODE that of the node
		delegates []string
		idle      []string
		skip      map[string]string
	}{
		"multinet":          {"multinet", `"cniDir":"DIR/state","confDir":"DIR",` + several, delegates, nil, nil},
		"multinet parallel": {"multinet", `"cniDir":"DIR/state","confDir":"DIR","parallel":true,` + several, delegates, nil, nil},
		"multinetd": {
			"multinet-shim", `"daemonSocketDir":"NODE/d","delQueueDir":"NODE/queue","cniDir":"DIR/state","confDir":"DIR/state","binDir":"DIR/no/bin",` + several,
			delegates, nil,
			map[string]string{
				"environment": "a daemon passes plugins only PATH and the trace context",
				"stderr":      "the daemon logs the plugins' stderr",
			},
		},
		"flannel": {"flannel", `"dataDir":"DIR/state","subnetFile":"NODE/subnet.env","delegate":{"type":"bridge"}`, []string{"bridge"}, nil, nil},
		"fallback": {
			"fallback", `"cniDir":"DIR/state","choices":[{"name":"storage","plugins":[{"type":"macvlan"},{"type":"tuning"}]}, {"type":"bridge"}, {"type":"ipvlan"}]`,
			[]string{"macvlan", "tuning"},
			[]string{"bridge", "ipvlan"},
			nil,
		},
		"policy":   {"policy", `"cniDir":"DIR/state","deny":["192.0.2.0/24"],"delegate":{"type":"bridge"}`, []string{"bridge"}, nil, nil},
		"resident": {"resident", `"addresses":["10.1.0.2/24"]`, nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.subnetEnv()
			if name == "policy" {
				n.program("nft")
			}
			if name == "multinetd" {
				n.daemon(daemonConf{keys: object{"cniDir": nil}}) // or it would override that of a request
			}
			conform(t, delegatetest.Binary{Path: built(tt.program), Env: []string{"PATH=" + n.path}}, delegatetest.Config{
				Stdin: func(dir string) string {
					return strings.NewReplacer("DIR", dir, "NODE", n.dir).Replace(fmt.Sprintf(`{"type":%q,%s}`, tt.program, tt.conf))
				},
				Delegates: tt.delegates, Idle: tt.idle, Skip: tt.skip, NetNS: delegatetest.NewNetNS,
			})
			n.noTrace()
		})
	}
}

// addresses answers for host-local with an address of the node's first range
// for each container, and a gateway.
func (n *node) addresses(ctx context.Context, c delegatetest.Call) ([]byte, error) {
	last := byte(2)
	if c.ContainerID != "" {
		last = 2 + c.ContainerID[len(c.ContainerID)-1]%16
	}
	subnet := net.ParseIP(n.net(1) + ".0").To4()
	ip := func(last byte) net.IP { return net.IPv4(subnet[0], subnet[1], subnet[2], last).To4() }
	return delegatetest.Result(&types100.Result{IPs: []*types100.IPConfig{{
		Address: net.IPNet{IP: ip(last), Mask: net.CIDRMask(24, 32)}, Gateway: ip(1),
	}}})(ctx, c)
}

// conform fails t unless exactly the checks in findings fail. A skipped check
// does not count as a skipped test.
func conform(t *testing.T, plugin delegatetest.Target, conf delegatetest.Config, findings ...string) {
	t.Helper()
	r := &recorder{T: t, said: make(map[string]string)}
	delegatetest.Conform(r, plugin, conf)
	failed := slices.Sorted(maps.Keys(r.said))
	for _, check := range failed {
		t.Logf("%s: %s", check, r.said[check])
	}
	nodetest.Equal(t, "failed checks", failed, findings)
}

// A recorder notes which checks fail.
type recorder struct {
	*testing.T
	check string
	said  map[string]string // by check
}

func (r *recorder) Errorf(format string, args ...any) {
	r.said[r.check] += fmt.Sprintf(format, args...) + "\n"
}

func (r *recorder) Skip(why ...any) {
	if r.check == "" {
		r.Fatal(why...)
	}
	r.Logf("%s: %s", r.check, fmt.Sprint(why...))
}

func (r *recorder) Run(check string, f func(*recorder)) bool {
	f(&recorder{r.T, check, r.said})
	return r.said[check] == ""
}
