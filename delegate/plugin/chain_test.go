package plugin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

// own is the result of the delegate bridge.
func own() *types100.Result {
	return &types100.Result{
		Interfaces: []*types100.Interface{{Name: "br0"}, {Name: "eth0", Sandbox: "/absent"}},
		IPs:        []*types100.IPConfig{{Interface: types100.Int(1), Address: net.IPNet{IP: net.IPv4(10, 1, 0, 2).To4(), Mask: net.CIDRMask(24, 32)}}},
		Routes:     []*types.Route{{Dst: net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}}},
		DNS:        types.DNS{Nameservers: []string{"10.1.0.1"}, Domain: "own"},
	}
}

// What CNI 1.1 has added is lost for an older runtime. A line at level debug says so.
func TestKeysThatTheRuntimeDoesNotKnowAreLogged(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{"0.3.1": "keys=\"[mtu pciID]\"", "1.1.0": ""} {
		n := newNode(t)
		n.version = version
		n.exec.Plugins["bridge"] = func(context.Context, delegatetest.Call) ([]byte, error) {
			return []byte(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mtu":1400,"pciID":"0000:03:02.1","sandbox":"/absent"}],"routes":[{"dst":"0.0.0.0/0","priority":7}]}`), nil
		}
		var log strings.Builder
		process := n.process()
		process.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		err := small().Do(t.Context(), process, delegate.CommandAdd, skel.CmdArgs{
			ContainerID: "c1", IfName: "eth0", Netns: "/absent", Path: "/opt/cni/bin",
			StdinData: fmt.Appendf(nil, `{"cniVersion":%q,"name":"n","type":"small","stateDir":%q,"delegates":[{"type":"bridge"}]}`, version, filepath.Join(n.dir, "state")),
		})
		if err != nil || strings.Contains(log.String(), "keys=") != (want != "") || !strings.Contains(log.String(), want) {
			t.Errorf("%s: %v; logged %s", version, err, log.String())
		}
	}
}

// In a chain the result begins with prevResult: its interfaces, addresses, routes and
// DNS settings, and then ours, whose addresses are on the same interfaces as before. The
// record and Report have what the plugins returned.
func TestResultInAChainBeginsWithPrevResult(t *testing.T) {
	t.Parallel()
	const prev = `"interfaces":[{"name":"up0","mac":"02:00:00:00:00:01","x.example/of":"up"}],
		"ips":[{"version":"4","address":"10.0.0.2/24","gateway":"10.0.0.1","interface":0}],
		"routes":[{"dst":"10.8.0.0/16"}],"dns":{"nameservers":["10.0.0.1"],"search":["up"]},"x.example/key":1234567890123456789`
	ownIP := func(version, index string) string {
		if version < "1.0.0" {
			return `{"address":"10.1.0.2/24",` + index + `"version":"4"}`
		}
		return `{"address":"10.1.0.2/24"` + strings.TrimSuffix(","+index, ",") + `}`
	}
	merged := func(version string) string {
		return fmt.Sprintf(`{"cniVersion":%q,
			"interfaces":[{"name":"up0","mac":"02:00:00:00:00:01","x.example/of":"up"},{"name":"br0"},{"name":"eth0","sandbox":"/absent"}],
			"ips":[{"version":"4","address":"10.0.0.2/24","gateway":"10.0.0.1","interface":0},%s],
			"routes":[{"dst":"10.8.0.0/16"},{"dst":"0.0.0.0/0"}],
			"dns":{"nameservers":["10.0.0.1","10.1.0.1"],"domain":"own","search":["up"]},"x.example/key":1234567890123456789}`, version, ownIP(version, `"interface":2,`))
	}
	alone := func(version string) string {
		return fmt.Sprintf(`{"cniVersion":%q,"interfaces":[{"name":"br0"},{"name":"eth0","sandbox":"/absent"}],"ips":[%s],"routes":[{"dst":"0.0.0.0/0"}],
			"dns":{"nameservers":["10.1.0.1"],"domain":"own"}}`, version, ownIP(version, `"interface":1,`))
	}
	for _, tt := range []struct{ name, version, keys, want string }{
		{"1.1.0", "1.1.0", `,"prevResult":{"cniVersion":"1.1.0",` + prev + `}`, merged("1.1.0")},
		{"1.0.0", "1.0.0", `,"prevResult":{"cniVersion":"1.0.0",` + prev + `}`, merged("1.0.0")},
		{"0.3.1", "0.3.1", `,"prevResult":{"cniVersion":"0.3.1",` + prev + `}`, merged("0.3.1")},
		{"without its version", "0.4.0", `,"prevResult":{` + prev + `}`, merged("0.4.0")},
		{
			"of another version", "1.0.0", `,"prevResult":{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"}}`,
			strings.Replace(alone("1.0.0"), `"ips":[`, `"ips":[{"address":"10.0.0.2/24"},`, 1),
		},
		{"empty", "1.0.0", `,"prevResult":{"cniVersion":"1.0.0"}`, alone("1.0.0")},
		{"none", "1.0.0", "", alone("1.0.0")},
		{"null", "1.0.0", `,"prevResult":null`, alone("1.0.0")},
		{
			"of a version without chains", "0.2.0", `,"prevResult":{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"}}`,
			`{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24","routes":[{"dst":"0.0.0.0/0"}]},"dns":{"nameservers":["10.1.0.1"],"domain":"own"}}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.exec.Plugins["bridge"] = delegatetest.Result(own())
			p := small()
			var reported string
			p.Add = func(ctx context.Context, c *plugin.Call) error {
				nets, err := p.Networks(ctx, c)
				if err != nil {
					return err
				}
				return c.Add(ctx, lifecycle.Transaction{
					Plan: lifecycle.Plan(c.Attachment(nets[0])),
					Report: func(_ context.Context, added []delegate.Attached) error {
						reported = string(added[0].Result)
						return nil
					},
				})
			}
			n.version = tt.version
			keys := `,"delegates":[{"type":"bridge"}]` + tt.keys
			if err := n.do(t, p, "ADD", keys); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(decoded(t, tt.want), decoded(t, n.out.String())); diff != "" {
				t.Errorf("printed (-want +got):\n%s", diff)
			}
			if strings.Contains(reported, "10.0.0.2") || !strings.Contains(reported, "10.1.0.2") {
				t.Errorf("reported %s", reported)
			}
			if err := n.do(t, p, "CHECK", keys); err != nil {
				t.Fatal(err)
			}
			for _, c := range n.exec.Calls()[1:] {
				if c.Command != "CHECK" || strings.Contains(string(c.Stdin), "up0") {
					t.Errorf("%v received %s", c, c.Stdin)
				}
			}
			if err := n.do(t, p, "DEL", keys); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func decoded(t *testing.T, text string) (object map[string]any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&object); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return object
}

// A prevResult that cannot be passed on is found before anything runs.
func TestBadPrevResultRunsNothing(t *testing.T) {
	t.Parallel()
	for _, prev := range []string{`5`, `[]`, `{"cniVersion":"9.9.9"}`, `{"cniVersion":"1.1.0","ips":[{"address":5}]}`, `{"cniVersion":"1.1.0","interfaces":[null]}`} {
		n := newNode(t)
		err := n.do(t, small(), "ADD", two+`,"prevResult":`+prev)
		if status.Code(err) != types.ErrDecodingFailure && status.Code(err) != types.ErrIncompatibleCNIVersion || !strings.Contains(fmt.Sprint(err), `"prevResult"`) {
			t.Errorf("%s: %v", prev, err)
		}
		if len(n.exec.Calls()) > 0 || n.out.Len() > 0 {
			t.Errorf("%s: ran %q, printed %s", prev, n.exec.Trace(), &n.out)
		}
		if err := n.do(t, small(), "DEL", two+`,"prevResult":`+prev); err != nil {
			t.Errorf("DEL with %s: %v", prev, err)
		}
	}
}

// Every method of a Call gives the networks that it is given a name and a version.
func TestCallCompletesNetworks(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	bare := func(c *plugin.Call) netconf.Network {
		conf, err := plugin.Config[struct{ Delegates []netconf.Network }](c)
		if err != nil {
			t.Fatal(err)
		}
		return conf.Delegates[0]
	}
	p := plugin.Plugin{
		StateDir: filepath.Join(n.dir, "state"),
		Add: func(ctx context.Context, c *plugin.Call) error {
			return c.Add(ctx, lifecycle.Transaction{Plan: lifecycle.Plan(c.Attachment(bare(c)))})
		},
		GC:     func(ctx context.Context, c *plugin.Call) error { return c.GC(ctx, bare(c)) },
		Status: func(ctx context.Context, c *plugin.Call) error { return c.Status(ctx, bare(c)) },
	}
	for _, command := range []delegate.Command{"ADD", "CHECK", "STATUS", "DEL", "GC"} {
		before := len(n.exec.Calls())
		if err := n.do(t, p, command, `,"delegates":[{"type":"bridge"}],"cni.dev/valid-attachments":[]`); err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		calls := n.exec.Calls()[before:]
		if len(calls) != 1 || calls[0].Command != string(command) {
			t.Fatalf("%s runs %v", command, calls)
		}
		if got := decoded(t, string(calls[0].Stdin)); got["name"] != "n" || got["cniVersion"] != "1.1.0" {
			t.Errorf("%s: %s", command, calls[0].Stdin)
		}
	}
	c, err := p.Call(n.process(), "ADD", skel.CmdArgs{ContainerID: "c1", IfName: "eth0", StdinData: []byte(`{"cniVersion":"1.1.0","name":"n","type":"small","cni.dev/valid-attachments":[]}`)})
	if err != nil {
		t.Fatal(err)
	}
	var null netconf.Network
	for name, err := range map[string]error{
		"Add":    c.Add(t.Context(), lifecycle.Transaction{Plan: lifecycle.Plan(c.Attachment(null))}),
		"GC":     c.GC(t.Context(), null),
		"Status": c.Status(t.Context(), null),
	} {
		if status.Code(err) != types.ErrInvalidNetworkConfig {
			t.Errorf("%s of null: %v", name, err)
		}
	}
}

// In a GC a network that is null is an error, and keeps its place: the network after it is
// not the one of the interface that the runtime asks for, and must not remove its
// attachments of containers without a record.
func TestGCDoesNotTakeTheSecondNetworkForTheFirst(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		valid string
		calls int
	}{
		"a container without a record": {`{"containerID":"old","ifname":"eth0"}`, 0},
		"all are known":                {"", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			p := plugin.Plugin{
				StateDir: filepath.Join(n.dir, "state"),
				Networks: func(_ context.Context, c *plugin.Call) ([]netconf.Network, error) {
					conf, err := plugin.Config[struct{ Delegates []netconf.Network }](c)
					return conf.Delegates, err
				},
			}
			err := n.do(t, p, "GC", `,"delegates":[null,{"type":"bridge"}],"cni.dev/valid-attachments":[`+tt.valid+`]`)
			if err == nil || !strings.Contains(err.Error(), "a network is missing or null") {
				t.Error(err)
			}
			if calls := n.exec.Calls(); len(calls) != tt.calls {
				t.Errorf("ran %v", calls)
			}
		})
	}
}
