package multinet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
			h.Exec.Plugins["down"] = delegatetest.FailOn("STATUS", 50, "no cable", delegatetest.Result(nil))
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
			for _, c := range h.Exec.Calls() {
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

// ADD waits for the readiness indicator file, STATUS fails without it, and CHECK, DEL
// and GC ignore it. The clock is that of testing/synctest.
func TestReadinessIndicatorFile(t *testing.T) {
	t.Parallel()
	took := func(t *testing.T, want time.Duration, do func()) {
		t.Helper()
		start := time.Now()
		do()
		if got := time.Since(start); got != want {
			t.Errorf("took %v, want %v", got, want)
		}
	}
	bubble := func(name string, test func(t *testing.T, h *host, conf, file string)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t, "1.1.0")
				file := filepath.Join(h.Dir, "ready")
				test(t, h, keys(bridge, `"readinessindicatorfile":"`+file+`"`), file)
			})
		})
	}
	bubble("missing", func(t *testing.T, h *host, conf, file string) {
		t.Helper()
		took(t, readyTimeout, func() {
			wantError(t, h.run(t, "ADD", conf), 11, `"multi"`, "readinessindicatorfile", file)
		})
		took(t, 0, func() {
			wantError(t, h.run(t, "STATUS", conf), 50, `"multi"`, "readinessindicatorfile", file)
		})
		wantTrace(t, h)
		h.clean(t)
	})
	bubble("missing, with a timeout of its own", func(t *testing.T, h *host, conf, _ string) {
		t.Helper()
		for text, want := range map[string]time.Duration{"45s": 45 * time.Second, "0s": 0} {
			took(t, want, func() {
				wantError(t, h.run(t, "ADD", keys(conf, `"readinessTimeout":"`+text+`"`)), 11, "readinessindicatorfile")
			})
		}
		h.clean(t)
	})
	bubble("comes", func(t *testing.T, h *host, conf, file string) {
		t.Helper()
		time.AfterFunc(1990*time.Millisecond, func() { h.Write("ready", "") })
		took(t, 2*time.Second, func() { h.mustRun(t, "ADD", conf) })
		wantTrace(t, h, "ADD bridge eth0")
	})
	bubble("there, then gone", func(t *testing.T, h *host, conf, file string) {
		t.Helper()
		h.Write("ready", "")
		took(t, 0, func() { h.mustRun(t, "ADD", conf) })
		took(t, 0, func() { h.mustRun(t, "STATUS", conf) })
		nodetest.OK(t, os.Remove(file))
		took(t, 0, func() {
			h.mustRun(t, "CHECK", conf)
			h.mustRun(t, "GC", keys(conf, `"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`))
			h.mustRun(t, "DEL", conf)
		})
		h.clean(t)
	})
	bubble("the caller gives up", func(t *testing.T, h *host, conf, _ string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		took(t, time.Second, func() {
			wantError(t, h.call(ctx, "ADD", h.conf(conf)), 11, "readinessindicatorfile")
		})
	})
	bubble("a configuration that is wrong is not waited with", func(t *testing.T, h *host, conf, _ string) {
		t.Helper()
		took(t, 0, func() {
			wantError(t, h.run(t, "ADD", strings.Replace(conf, `{"type":"bridge"}`, "5", 1)), 6, "delegates")
		})
	})
}

// STATUS answers 50 for what may become ready, 51 if a delegate does, and the code of
// the mistake if the configuration is wrong.
func TestStatus(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, keys string
		code       uint
		says       string
	}{
		{"ready", bridge, 0, ""},
		{"not asked for what pods select", keys(bridge, annotated("absent")), 0, ""},
		{"network that is not there yet", `"clusterNetwork":"absent"`, 50, `"absent"`},
		{"plugin that is not there yet", `"delegates":[{"type":"absent"}]`, 50, `"absent"`},
		{"not ready", `"delegates":[{"type":"later"}]`, 50, "come back"},
		{"limited", `"delegates":[{"type":"bridge"},{"type":"cut"}]`, 51, "cut off"},
		{"any other code", `"delegates":[{"type":"odd"}]`, 50, "odd"},
		{"nothing to attach", ``, 7, "delegates"},
		{"not the JSON expected", `"delegates":5`, 6, "delegates"},
		{"a bad file", `"clusterNetwork":"bad"`, 50, "bad.conf"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			h.Exec.Plugins["later"] = delegatetest.FailOn("STATUS", 50, "come back", delegatetest.Result(nil))
			h.Exec.Plugins["cut"] = delegatetest.FailOn("STATUS", 51, "cut off", delegatetest.Result(nil))
			h.Exec.Plugins["odd"] = delegatetest.FailOn("STATUS", 100, "odd", delegatetest.Result(nil))
			wantError(t, h.run(t, "STATUS", tt.keys), tt.code, tt.says)
			h.clean(t)
		})
	}
}
