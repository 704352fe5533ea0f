package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/examples/lab/host"
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
			w := newWorld(t)
			w.needsProgram("iptables")
			conf := object{"name": w.name(name), "type": name, "ipMasq": true, "ipam": object{"type": "host-local"}}
			switch name {
			case "bridge":
				conf["bridge"], conf["isGateway"] = w.name("br-"), true
			case "macvlan":
				master := w.name("card")
				index, err := host.Uplink(master)
				if err != nil {
					t.Fatal(err)
				}
				w.needs(&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{ParentIndex: index}, Mode: netlink.MACVLAN_MODE_BRIDGE})
				conf["master"] = master
			}
			stdin, err := json.Marshal(conf)
			if err != nil {
				t.Fatal(err)
			}
			conform(t, delegatetest.Binary{Path: built(name), Env: []string{"PATH=" + w.path}}, delegatetest.Config{
				Stdin:     func(string) string { return string(stdin) },
				Delegates: []string{"host-local"},
				Fakes:     map[string]delegatetest.Plugin{"host-local": w.addresses},
				NetNS:     delegatetest.NewNetNS,
			}, findings...)
		})
	}
}

// TestExamplesConform: the built examples pass every conformance check in real
// namespaces. TestShimAndDaemonConform has shim and daemon.
func TestExamplesConform(t *testing.T) {
	const multinet = `{"type":"multinet","cniDir":%q,"confDir":%q,"delegates":[
		{"type":"bridge"}, {"name":"storage","plugins":[{"type":"macvlan"},{"type":"tuning"}]}, {"type":"ipvlan"}
	],"parallel":%t}`
	for _, tt := range []struct {
		name, program string
		stdin         func(dir string) string
		delegates     []string
		idle          []string
	}{
		{"multinet", "multinet", func(dir string) string {
			return fmt.Sprintf(multinet, filepath.Join(dir, "state"), dir, false)
		}, []string{"bridge", "macvlan", "tuning", "ipvlan"}, nil},
		{"multinet parallel", "multinet", func(dir string) string {
			return fmt.Sprintf(multinet, filepath.Join(dir, "state"), dir, true)
		}, []string{"bridge", "macvlan", "tuning", "ipvlan"}, nil},
		{"flannel", "flannel", func(dir string) string {
			subnet := filepath.Join(dir, "subnet.env")
			if err := os.WriteFile(subnet, []byte("FLANNEL_NETWORK=10.9.0.0/16\nFLANNEL_SUBNET=10.9.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"), 0o600); err != nil {
				panic(err)
			}
			return fmt.Sprintf(`{"type":"flannel","dataDir":%q,"subnetFile":%q,"delegate":{"type":"bridge"}}`, filepath.Join(dir, "state"), subnet)
		}, []string{"bridge"}, nil},
		{"fallback", "fallback", func(dir string) string {
			return fmt.Sprintf(`{"type":"fallback","cniDir":%q,"choices":[
				{"name":"storage","plugins":[{"type":"macvlan"},{"type":"tuning"}]}, {"type":"bridge"}, {"type":"ipvlan"}
			]}`, filepath.Join(dir, "state"))
		}, []string{"macvlan", "tuning"}, []string{"bridge", "ipvlan"}},
		{"resident", "resident", func(string) string {
			return `{"type":"resident","addresses":["10.1.0.2/24"]}`
		}, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			newWorld(t)
			conform(t, delegatetest.Binary{Path: built(tt.program)}, delegatetest.Config{
				Stdin: tt.stdin, Delegates: tt.delegates, Idle: tt.idle, NetNS: delegatetest.NewNetNS,
			})
		})
	}
}

// addresses answers for host-local with an address of the world's first range
// for each container, and a gateway.
func (w *world) addresses(ctx context.Context, c delegatetest.Call) ([]byte, error) {
	last := byte(2)
	if c.ContainerID != "" {
		last = 2 + c.ContainerID[len(c.ContainerID)-1]%16
	}
	subnet := net.ParseIP(w.net(1) + ".0").To4()
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
	same(t, "failed checks", findings, failed)
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
