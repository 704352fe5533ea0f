package multinet

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// A network is what an ADD would attach, and is ready if its plugins say so.
func TestStatusOfANetworkThatIsOffered(t *testing.T) {
	t.Parallel()
	configs := map[string]string{
		"ns/blue":   `{"cniVersion":"1.1.0","type":"macvlan"}`,
		"ns/old":    `{"cniVersion":"1.0.0","type":"down"}`,
		"ns/down":   `{"cniVersion":"1.1.0","plugins":[{"type":"macvlan"},{"type":"down"}]}`,
		"ns/path":   `{"cniVersion":"1.1.0","type":"../macvlan"}`,
		"ns/bridge": `{"cniVersion":"1.1.0","type":"bridge"}`,
		"ns/other":  ``, // a file of the node
	}
	for name, tt := range map[string]struct {
		keys, network string
		code          uint
		errs          string
		types, trace  string
	}{
		"a definition":                        {network: "ns/blue", types: "macvlan", trace: "STATUS macvlan"},
		"a version without STATUS":            {network: "ns/old", types: "down"},
		"a plugin that is not ready":          {network: "ns/down", code: 50, errs: "no cable", types: "macvlan down", trace: "STATUS macvlan STATUS down"},
		"a definition that cannot be used":    {network: "ns/path", code: 7, errs: "path"},
		"a type that pods may not have":       {keys: `"allowedTypes":{"nad":["macvlan"]}`, network: "ns/bridge", code: 7, errs: "bridge"},
		"no such definition":                  {network: "ns/none", code: 7, errs: "ns/none"},
		"no name of a definition":             {network: "ns/a/b", code: 7, errs: "a/b"},
		"a definition that is a file":         {network: "ns/other", types: "bridge", trace: "STATUS bridge"},
		"a file":                              {network: "fast", types: "macvlan", trace: "STATUS macvlan"},
		"a file that cannot be read":          {network: "bad", code: 7, errs: "a number, want a string"},
		"no such file":                        {network: "none", code: 7, errs: "none"},
		"a configuration that cannot be read": {keys: `"systemNamespaces":"x"`, network: "fast", code: 6, errs: "systemNamespaces"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			h.exec.Plugins["down"] = delegatetest.FailOn("STATUS", 50, "no cable", delegatetest.Result(nil))
			h.cluster = Cluster{Definition: func(_ context.Context, r nad.Ref, _ nad.Use) (nad.Definition, error) {
				config, ok := configs[r.String()]
				if !ok {
					return nad.Definition{}, &nad.Error{Ref: r, Err: &netconf.Error{Kind: netconf.ErrNotFound, Err: errors.New(r.String())}}
				}
				return nad.Definition{Ref: r, Config: config}, nil
			}}
			n, err := Status(t.Context(), h.process(), skel.CmdArgs{StdinData: []byte(h.conf(tt.keys))}, h.cluster, tt.network)
			if status.Code(err) != tt.code || err != nil && !strings.Contains(err.Error(), tt.errs) {
				t.Errorf("code %d, want %d and %q: %v", status.Code(err), tt.code, tt.errs, err)
			}
			var types []string
			if !n.IsZero() {
				for _, p := range n.Plugins() {
					types = append(types, p.Type())
				}
			}
			if got := strings.Join(types, " "); got != tt.types {
				t.Errorf("plugins %q, want %q", got, tt.types)
			}
			var trace []string
			for _, c := range h.exec.Calls() {
				trace = append(trace, c.Command, c.Plugin)
			}
			if got := strings.Join(trace, " "); got != tt.trace {
				t.Errorf("calls %q, want %q", got, tt.trace)
			}
		})
	}
}

// What a claim may name is what a pod may select.
func TestRulesForClaimsAreThoseForSelections(t *testing.T) {
	t.Parallel()
	r := newHost(t, "1.0.0").reviewer(t, `"namespaceIsolation":true,"globalNamespaces":"shared","allowedTypes":{"standing":["bridge"],"nad":["macvlan"]}`)
	policy, rules := r.Claims()
	for ref, allowed := range map[string]bool{"ns/x": true, "shared/x": true, "other/x": false} {
		parsed, err := nad.ParseRef(ref, "")
		nodetest.OK(t, err)
		if _, err := policy.Decide("ns", parsed, nad.Claimed); (err == nil) != allowed {
			t.Errorf("%s: %v", ref, err)
		}
	}
	for typ, allowed := range map[string]bool{"macvlan": true, "bridge": false, "multinet": false} {
		n := nodetest.Parse(`{"cniVersion":"1.0.0","name":"n","type":"` + typ + `"}`)
		if err := rules.Check(n); (err == nil) != allowed {
			t.Errorf("%s: %v", typ, err)
		}
	}
}
