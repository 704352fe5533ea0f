package multinet

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
)

// The routes themselves are moved in internal/e2e, which has namespaces.

// A default route is recognised however it is written (D15, D55), and what else
// a result holds stays as it is.
func TestD15ReviseResults(t *testing.T) {
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
			"old results have no place for it", "10.9.1.1",
			[]string{`{"ip4":{"ip":"10.9.0.2/24","routes":[{"dst":"0.0.0.0/0"}]}}`, `{"ip6":{"ip":"fd00::2/64"}}`},
			[]string{`{"ip4":{"ip":"10.9.0.2/24","routes":[{"dst":"0.0.0.0/0"}]}}`, `{"ip6":{"ip":"fd00::2/64"}}`},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			added := make([]delegate.Attached, len(tt.before))
			for i, r := range tt.before {
				added[i].Result = json.RawMessage(r)
			}
			if err := reviseResults(added, 1, netip.MustParseAddr(tt.gateway)); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, a := range added {
				got = append(got, string(a.Result))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("results (-want +got):\n%s", diff)
			}
		})
	}
	for _, bad := range []string{`[]`, `{"routes":{}}`} {
		if err := reviseResults([]delegate.Attached{{Result: json.RawMessage(bad)}}, 0, netip.IPv4Unspecified()); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}
