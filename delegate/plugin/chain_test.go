package plugin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
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
	for version, want := range map[string]int{"0.3.1": 1, "1.1.0": 0} {
		n := newNode(t)
		var log nodetest.Log
		n.version, n.log = version, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		n.Exec.Plugins["bridge"] = func(context.Context, delegatetest.Call) ([]byte, error) {
			return []byte(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mtu":1400,"pciID":"0000:03:02.1","sandbox":"/absent"}],"routes":[{"dst":"0.0.0.0/0","priority":7}]}`), nil
		}
		nodetest.OK(t, n.do(small(), "ADD", `,"delegates":[{"type":"bridge"}]`))
		nodetest.Equal(t, version, log.Count(`keys="[mtu pciID]"`), want)
		nodetest.Equal(t, version, log.Count("keys="), want)
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
	for name, tt := range map[string]struct{ version, prev, want string }{
		"1.1.0":               {"1.1.0", `{"cniVersion":"1.1.0",` + prev + `}`, merged("1.1.0")},
		"0.3.1":               {"0.3.1", `{"cniVersion":"0.3.1",` + prev + `}`, merged("0.3.1")},
		"without its version": {"0.4.0", `{` + prev + `}`, merged("0.4.0")},
		"of another version":  {"1.0.0", `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"}}`, strings.Replace(alone("1.0.0"), `"ips":[`, `"ips":[{"address":"10.0.0.2/24"},`, 1)},
		"empty":               {"1.0.0", `{"cniVersion":"1.0.0"}`, alone("1.0.0")},
		"null":                {"1.0.0", `null`, alone("1.0.0")},
		"of a version without chains": {
			"0.2.0", `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"}}`,
			`{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24","routes":[{"dst":"0.0.0.0/0"}]},"dns":{"nameservers":["10.1.0.1"],"domain":"own"}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.Exec.Plugins["bridge"] = delegatetest.Result(own())
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
			keys := `,"delegates":[{"type":"bridge"}],"prevResult":` + tt.prev
			nodetest.OK(t, n.do(p, "ADD", keys))
			nodetest.Equal(t, "printed", decoded(t, n.out.String()), decoded(t, tt.want))
			if strings.Contains(reported, "10.0.0.2") || !strings.Contains(reported, "10.1.0.2") {
				t.Errorf("reported %s", reported)
			}
			n.Trace()
			nodetest.OK(t, n.do(p, "CHECK", keys))
			for _, c := range n.Trace() {
				nodetest.Equal(t, "call", c, "CHECK bridge eth0")
				nodetest.Equal(t, "it has the interface of prevResult", strings.Contains(string(n.Last(c).Stdin), "up0"), false)
			}
			nodetest.OK(t, n.do(p, "DEL", keys))
		})
	}
}

func decoded(t *testing.T, text string) (object map[string]any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	nodetest.OK(t, d.Decode(&object))
	return object
}

// A prevResult that cannot be passed on is found before anything runs.
func TestBadPrevResultRunsNothing(t *testing.T) {
	t.Parallel()
	for _, prev := range []string{`5`, `{"cniVersion":"9.9.9"}`, `{"cniVersion":"1.1.0","ips":[{"address":5}]}`, `{"cniVersion":"1.1.0","interfaces":[null]}`} {
		n := newNode(t)
		nodetest.Fails(t, n.do(small(), "ADD", two+`,"prevResult":`+prev), types.ErrDecodingFailure, `"prevResult"`)
		n.WantTrace()
		nodetest.Equal(t, "printed", n.out.String(), "")
		nodetest.OK(t, n.do(small(), "DEL", two+`,"prevResult":`+prev))
	}
}

// Every method of a Call gives the networks that it is given a name and a version.
func TestCallCompletesNetworks(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	bare := func(c *plugin.Call) netconf.Network {
		conf, err := plugin.Config[struct{ Delegates []netconf.Network }](c)
		nodetest.OK(t, err)
		return conf.Delegates[0]
	}
	p := plugin.Plugin{
		StateDir: n.Path("state"),
		Add: func(ctx context.Context, c *plugin.Call) error {
			return c.Add(ctx, lifecycle.Transaction{Plan: lifecycle.Plan(c.Attachment(bare(c)))})
		},
		GC:     func(ctx context.Context, c *plugin.Call) error { return c.GC(ctx, bare(c)) },
		Status: func(ctx context.Context, c *plugin.Call) error { return c.Status(ctx, bare(c)) },
	}
	const valid = `,"cni.dev/valid-attachments":[]`
	for _, command := range []delegate.Command{"ADD", "CHECK", "STATUS", "DEL", "GC"} {
		nodetest.OK(t, n.do(p, command, `,"delegates":[{"type":"bridge"}]`+valid))
		nodetest.Equal(t, "calls", len(n.Trace()), 1)
		got := nodetest.Stdin(t, n.Last(string(command)))
		nodetest.Equal(t, string(command), []any{got["name"], got["cniVersion"]}, []any{"n", "1.1.0"})
	}
	c, err := p.Call(n.process(), "ADD", n.call(valid))
	nodetest.OK(t, err)
	var null netconf.Network
	for _, err := range []error{
		c.Add(t.Context(), lifecycle.Transaction{Plan: lifecycle.Plan(c.Attachment(null))}), c.GC(t.Context(), null), c.Status(t.Context(), null),
	} {
		nodetest.Code(t, err, types.ErrInvalidNetworkConfig)
	}
}

// In a GC a network that is null is an error, and keeps its place: the network after it is
// not the one of the interface that the runtime asks for, and must not remove its
// attachments of containers without a record.
func TestGCDoesNotTakeTheSecondNetworkForTheFirst(t *testing.T) {
	t.Parallel()
	for valid, calls := range map[string][]string{`{"containerID":"old","ifname":"eth0"}`: nil, "": {"GC bridge"}} {
		n := newNode(t)
		err := n.do(small(), "GC", `,"delegates":[null,{"type":"bridge"}],"cni.dev/valid-attachments":[`+valid+`]`)
		nodetest.Says(t, err, "a network is missing or null")
		n.WantTrace(calls...)
	}
}
