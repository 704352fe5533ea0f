package multinet

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
)

// Routes are moved in internal/e2e as well, by real plugins.

// The network namespace is looked up in the Root, where plugins see it.
func TestDefaultRouteInRoot(t *testing.T) {
	link := newNamespace(t)
	path := fmt.Sprintf("/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
	asked := []attachment{{selection: netconf.Selection{DefaultRoute: []netip.Addr{netip.MustParseAddr("10.9.1.1")}}}}
	added := []delegate.Attached{{
		Attachment: delegate.Attachment{NetNS: path, IfName: "net1"}, Result: json.RawMessage(`{"cniVersion":"1.0.0"}`),
	}}
	if err := moveDefaultRoute("", asked, added); err == nil {
		t.Error("found without the root")
	}
	nodetest.OK(t, moveDefaultRoute("/proc", asked, added))
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
			added := make([]delegate.Attached, len(tt.before))
			for i, r := range tt.before {
				added[i].Result = json.RawMessage(r)
			}
			nodetest.OK(t, reviseResults(added, 1, netip.MustParseAddr(tt.gateway)))
			var got []string
			for _, a := range added {
				got = append(got, string(a.Result))
			}
			nodetest.Equal(t, "results", got, tt.want)
		})
	}
	for _, bad := range []string{`[]`, `null`, `{"routes":{}}`, `{"cniVersion":5}`, `{"cniVersion":"0.2.0","ip4":[]}`, `{"cniVersion":"0.2.0","ip4":{"routes":{}}}`} {
		if err := reviseResults([]delegate.Attached{{Result: json.RawMessage(bad)}}, 0, netip.IPv4Unspecified()); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}
