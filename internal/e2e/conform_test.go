package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate/conform"
	"github.com/metacni/metacni/delegate/conform/host"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
)

// TestExamplesConform: built examples pass every conformance check in real namespaces. Those that
// have the main of another pass them in a test of their own, without namespaces.
func TestExamplesConform(t *testing.T) {
	const several = `"delegates":[{"type":"bridge"}, {"name":"storage","plugins":[{"type":"macvlan"},{"type":"tuning"}]}, {"type":"ipvlan"}]`
	delegates := []string{"bridge", "macvlan", "tuning", "ipvlan"}
	for name, tt := range map[string]struct {
		program   string
		conf      string // DIR is a directory of the container
		delegates []string
		kind      string
	}{
		"multinet":  {"multinet", `"cniDir":"DIR/state","confDir":"DIR","parallel":true,` + several, delegates, "meta"},
		"multinetd": {"multinet-shim", `"daemonSocketDir":"DIR/d","delQueueDir":"DIR/queue","cniDir":"DIR/state","confDir":"DIR/state","binDir":"DIR/no/bin",` + several, delegates, "shim"},
		"flannel":   {"flannel", `"dataDir":"DIR/state","subnetFile":"DIR/subnet.env","delegate":{"type":"bridge"}`, delegates[:1], "meta"},
		"policy":    {"policy", `"cniDir":"DIR/state","deny":["192.0.2.0/24"],"delegate":{"type":"bridge"}`, delegates[:1], "meta"},
		"resident":  {"resident", `"addresses":["10.1.0.2/24"]`, nil, "main"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			if name == "policy" {
				n.program("nft")
			}
			subnet := fmt.Sprintf("FLANNEL_NETWORK=%s.0/24\nFLANNEL_SUBNET=%[1]s.1/26\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n", n.Net(0))
			plugin := conform.Binary{Path: built(tt.program), Env: []string{"PATH=" + process.Path}}
			if name == "multinetd" {
				plugin.Daemon = []string{built("multinetd"), "--config", "{dir}/daemon.json"}
			}
			conf := conform.Config{
				Stdin: func(dir string) string {
					nodetest.OK(t, os.WriteFile(filepath.Join(dir, "daemon.json"), fmt.Appendf(nil, `{"socketDir":"%s/d","queueDir":"%[1]s/queue"}`, dir), 0o600))
					nodetest.OK(t, os.WriteFile(filepath.Join(dir, "subnet.env"), []byte(subnet), 0o600))
					return strings.ReplaceAll(fmt.Sprintf(`{"type":%q,%s}`, tt.program, tt.conf), "DIR", dir)
				},
				Delegates: tt.delegates, Strict: true, NetNS: true,
			}
			if name == "resident" { // makes no interface
				conf.NetNS, conf.Kind = false, tt.kind
			}
			kind, findings, err := conform.Findings(t.Context(), plugin, conf)
			nodetest.OK(t, err)
			nodetest.Equal(t, "kind, because "+kind.Why, kind.Name, tt.kind)
			for f := range findings {
				switch {
				case f.Err != nil:
					t.Error(f)
				case f.NotRun != "":
					t.Log(f)
				}
			}
			n.noTrace()
		})
	}
}

// TestFlawsInRealContainersAreFound: on a real host each flaw of a plugin that makes interfaces,
// or that changes what others have made, fails one of the checks that look there. Without a flaw the
// plugin passes all checks.
func TestFlawsInRealContainersAreFound(t *testing.T) {
	looks := strings.Fields("result interface chain add-exists del del-again del-bare del-gone del-failed names check-fresh check-gone gc-stale")
	for _, tt := range []struct{ kind, flaw, want string }{
		{"main", "", ""},
		{"main", "no interface", "interface"},
		{"main", "no address", "interface"},
		{"main", "another name", "interface"},
		{"main", "forgets the sandbox", "interface"},
		{"main", "replaces an interface", "add-exists"},
		{"main", "leaves a file", "del"},
		{"main", "leaves an interface", "del"},
		{"main", "leaves a process", "del"},
		{"main", "needs the namespace", "del-gone"},
		{"main", "gives up without the namespace", "del-gone"},
		{"main", "leaves an interface that it cannot move", "del-failed"},
		{"main", "knows the container only", "names"},
		{"main", "deletes eth0", "names"},
		{"main", "checks nothing", "check-gone"},
		{"main", "checks the interface only", "check-gone"},
		{"main", "collects nothing", "gc-stale"},
		{"main", "collects everything", "gc-stale"},
		{"chained", "", ""},
		{"chained", "drops prevResult", "chain"},
		{"chained", "leaves a rule", "del"},
		{"chained", "leaves a process", "del"},
		{"chained", "needs the namespace", "del-gone"},
		{"chained", "gives up without the namespace", "del-gone"},
		{"chained", "checks nothing", "check-gone"},
		{"chained", "changes the MTU", ""},
		{"chained", "changes the MTU and checks nothing", "check-gone"},
		{"chained", "changes a setting and checks nothing", "check-gone"},
		{"chained", "removes a route and checks nothing", "check-gone"},
		{"chained", "collects nothing", "gc-stale"},
		{"chained", "collects everything", "gc-stale"},
	} {
		t.Run(tt.kind+"/"+tt.flaw, func(t *testing.T) {
			t.Parallel()
			host.Need(t)
			skip := map[string]string{}
			for _, c := range conform.Checks() {
				if tt.flaw != "" && !slices.Contains(looks, c.Name) {
					skip[c.Name] = "it does not look at what is in containers and on the host"
				}
			}
			kind, findings, err := conform.Findings(t.Context(), conform.Binary{Path: built("simple"), Env: []string{"PATH=" + os.Getenv("PATH")}}, conform.Config{
				Stdin: func(string) string {
					return fmt.Sprintf(`{"type":"simple","chained":%t,"flaw":%q}`, tt.kind == "chained", tt.flaw)
				},
				NetNS: true, Skip: skip,
			})
			nodetest.OK(t, err)
			nodetest.Equal(t, "kind", kind.Name, tt.kind)
			var failed []string
			for f := range findings {
				if f.Err != nil {
					failed = append(failed, f.Name)
					t.Log(f)
				}
				if f.NotRun != "" && tt.flaw == "" {
					t.Errorf("%v", f)
				}
			}
			nodetest.Equal(t, "failed", failed, strings.Fields(tt.want))
		})
	}
}
