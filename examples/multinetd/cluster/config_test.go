package cluster

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/metacni/metacni/internal/nodetest"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/examples/multinet/multinet"
)

// read reads keys as the daemon does.
func read(t *testing.T, keys string) (Config, error) {
	t.Helper()
	c := DefaultConfig()
	var all map[string]json.RawMessage
	nodetest.OK(t, json.Unmarshal([]byte(keys), &all))
	for key, field := range c.Keys() {
		if value, ok := all[key]; ok {
			if err := json.Unmarshal(value, field); err != nil {
				return c, err
			}
		}
	}
	return c, c.Check()
}

func TestKeysHaveDefaultsAndAreChecked(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		keys string
		want func(*Config)
		errs string
	}{
		{keys: `{}`, want: func(*Config) {}},
		{
			keys: `{"kubeconfig":"/etc/k","nodeName":"n1","statusPolicy":"require","statusTimeout":"3s","statusRate":2.5,"statusFor":"selected","events":"full",
				"nadWait":"0s","podWait":"5s","maxViewAge":"10m","kubeletDir":"/k","reconcile":true,"onChange":"replace","startupTaint":"a.io/b"}`,
			want: func(c *Config) {
				*c = Config{
					Kubeconfig: "/etc/k", Node: "n1", StatusPolicy: "require", StatusTimeout: multinet.Duration(3 * time.Second), StatusRate: 2.5, StatusFor: Selected,
					Events: "full", Reconcile: true, OnChange: "replace", PodWait: multinet.Duration(5 * time.Second), MaxViewAge: multinet.Duration(10 * time.Minute), KubeletDir: "/k", StartupTaint: "a.io/b",
				}
			},
		},
		{keys: `{"kubeconfig":"k"}`, errs: "kubeconfig"},
		{keys: `{"kubeletDir":""}`, errs: "kubeletDir"},
		{keys: `{"startupTaint":"a.io/b=c:NoSchedule"}`, errs: "startupTaint"},
		{keys: `{"statusPolicy":"maybe"}`, errs: `statusPolicy "maybe"`},
		{keys: `{"statusPolicy":""}`, errs: `statusPolicy ""`},
		{keys: `{"statusFor":"none"}`, errs: `statusFor "none"`},
		{keys: `{"events":"loud"}`, errs: `events "loud"`},
		{keys: `{"events":true}`, errs: "bool"},
		{keys: `{"onChange":"now"}`, errs: `onChange "now"`},
		{keys: `{"reconcile":"yes"}`, errs: "bool"},
		{keys: `{"statusTimeout":"-1s"}`, errs: "statusTimeout"},
		{keys: `{"statusTimeout":"0s"}`, errs: "statusTimeout"},
		{keys: `{"statusRate":0}`, want: func(*Config) {}},
		{keys: `{"statusRate":-1}`, errs: "statusRate -1 is negative"},
		{keys: `{"statusRate":"50"}`, errs: "string"},
		{keys: `{"statusRate":1e999}`, errs: "1e999"},
		{keys: `{"nadWait":"-1s"}`, errs: "nadWait"},
		{keys: `{"podWait":"soon"}`, errs: "soon"},
		{keys: `{"maxViewAge":"-1s"}`, errs: "maxViewAge"},
	} {
		got, err := read(t, tt.keys)
		if tt.errs != "" {
			if err == nil || !strings.Contains(err.Error(), tt.errs) {
				t.Errorf("%s: err = %v, want %q", tt.keys, err, tt.errs)
			}
			continue
		}
		want := DefaultConfig()
		tt.want(&want)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", tt.keys, err, diff)
		}
	}
}

// A kubeconfig comes before the environment of a pod, and a pod without a token has no
// cluster.
func TestClusterIsFoundInTheEnvironment(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	nodetest.OK(t, os.WriteFile(token, []byte("secret"), 0o600))
	inPod := map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1", "NODE_NAME": "n1", "POD_NAMESPACE": "kube-system", "POD_NAME": "d"}
	for _, tt := range []struct {
		name   string
		conf   Config
		env    map[string]string
		token  string
		source string
		node   string
		errs   string
	}{
		{name: "nothing", token: token, source: "none"},
		{name: "in a pod", env: inPod, token: token, source: "in cluster", node: "n1"},
		{name: "in a pod without a token", env: inPod, token: token + "x", source: "none", node: "n1"},
		{name: "kubeconfig", conf: Config{Kubeconfig: "/k", Node: "n2"}, env: inPod, token: token, source: "/k", node: "n2"},
		{name: "pods of all nodes", conf: Config{Kubeconfig: "/k", Annotations: "api"}, token: token, errs: "nodeName"},
		{name: "pods of this node", conf: Config{Annotations: "api"}, env: inPod, token: token, source: "in cluster", node: "n1"},
		{name: "running pods of all nodes", conf: Config{Kubeconfig: "/k", Reconcile: true}, token: token, errs: "nodeName"},
		{name: "running pods of this node", conf: Config{Kubeconfig: "/k", Reconcile: true}, env: inPod, token: token, source: "/k", node: "n1"},
		{name: "running pods without a cluster", conf: Config{Reconcile: true}, token: token, source: "none"},
		{name: "the taint of no node", conf: Config{Kubeconfig: "/k", StartupTaint: "a"}, token: token, errs: "nodeName"},
		{name: "a taint without a cluster", conf: Config{StartupTaint: "a"}, token: token, source: "none"},
		{name: "pods without a cluster", conf: Config{Annotations: "api", Node: "n1"}, token: token, errs: "kubeconfig"},
	} {
		c := tt.conf
		err := c.Discover(func(key string) string { return tt.env[key] }, tt.token)
		if tt.errs != "" {
			if err == nil || !strings.Contains(err.Error(), tt.errs) {
				t.Errorf("%s: err = %v, want %q", tt.name, err, tt.errs)
			}
			continue
		}
		if err != nil || c.Source() != tt.source || c.On() != (tt.source != "none") || c.Node != tt.node {
			t.Errorf("%s: %v %q on node %q", tt.name, err, c.Source(), c.Node)
		}
	}
}
