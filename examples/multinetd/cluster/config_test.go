package cluster

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/metacni/metacni/delegate/kube/dra"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/internal/nodetest"
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

const driverName = "net.example.com"

func TestKeysAboutClaimsAreChecked(t *testing.T) {
	t.Parallel()
	const driver = `"driver":"net.example.com"`
	network := func(keys string) string { return driver + `,"networks":[{` + keys + `}]` }
	for _, tt := range []struct {
		keys string
		want DRA
		errs string
	}{
		{keys: driver, want: DRA{Driver: driverName}},
		{keys: driver + `,"allowedTypes":["macvlan"]`, want: DRA{Driver: driverName, AllowedTypes: []string{"macvlan"}}},
		{keys: driver + `,"networks":[]`, want: DRA{Driver: driverName, Networks: []dra.Offer{}}},
		{
			keys: driver + `,"networks":[{"network":"kube-system/storage.v2","exclusive":true,"attributes":{"speed":"fast","example.com/rack":"7"}},{"device":"x","network":"My_Net"},{"network":"_My_Net"}],
				"metadata":true,"cdiDir":"/cdi","rollingUpdate":true`,
			want: DRA{
				Driver: driverName, Metadata: true, CDIDir: "/cdi", RollingUpdate: true,
				Networks: []dra.Offer{
					{Network: "kube-system/storage.v2", Exclusive: true, Attributes: map[string]string{"speed": "fast", "example.com/rack": "7"}},
					{Device: "x", Network: "My_Net"},
					{Network: "_My_Net"},
				},
			},
		},
		{keys: ``, errs: "dra: driver: missing"},
		{keys: `"driver":""`, errs: "dra: driver: missing"},
		{keys: `"driver":"Net.example.com"`, errs: `driver "Net.example.com" is not a DNS subdomain`},
		{keys: `"driver":"net/example"`, errs: "DNS subdomain"},
		{keys: `"driver":"` + strings.Repeat("a.", 40) + `a"`, errs: "at most 63"},
		{keys: `"driver":7`, errs: "driver"},
		{keys: driver + `,"network":[]`, errs: `"network"`},
		{keys: driver + `,"networks":{}`, errs: "networks"},
		{keys: driver + `,"networks":["a"]`, errs: "networks"},
		{keys: driver + `,"metadata":"yes"`, errs: "metadata"},
		{keys: driver + `,"rollingUpdate":1`, errs: "rollingUpdate"},
		{keys: driver + `,"cdiDir":"run/cdi"`, errs: `cdiDir "run/cdi"`},
		{keys: network(``), errs: "networks[0]: network: missing"},
		{keys: network(`"network":"a","exclusve":true`), errs: `"exclusve"`},
		{keys: network(`"network":"a","exclusive":"no"`), errs: "exclusive"},
		{keys: network(`"network":"a","attributes":{"x":1}`), errs: "attributes"},
		{keys: network(`"network":"a","attributes":{"x y":"1"}`), errs: `"x y"`},
		{keys: network(`"network":"a","attributes":{"x":"` + strings.Repeat("1", 65) + `"}`), errs: "longer than 64"},
		{keys: network(`"network":"a/b/c"`), errs: `"a/b/c"`},
		{keys: network(`"network":"A/b"`), errs: `"A/b"`},
		{keys: network(`"network":"a/"`), errs: `"a/"`},
		{keys: network(`"network":"a","device":"A"`), errs: `"A"`},
		{keys: network(`"network":"___"`), errs: `device ""`},
		{keys: network(`"network":"a/b"},{"network":"a/b","device":"c"`), errs: `networks[1]: network "a/b" is listed twice`},
		{keys: network(`"network":"a/b"},{"network":"c/b"`), errs: `networks[1]: two networks are the device "b"`},
	} {
		got, err := read(t, `{"dra":{`+tt.keys+`}}`)
		if tt.errs != "" {
			if err == nil || !strings.Contains(err.Error(), tt.errs) {
				t.Errorf("%s: err = %v, want %q", tt.keys, err, tt.errs)
			}
			continue
		}
		if diff := cmp.Diff(&tt.want, got.DRA, cmpopts.IgnoreUnexported(DRA{})); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", tt.keys, err, diff)
		}
	}
	for _, keys := range []string{`{"dra":"net.example.com"}`, `{"dra":[]}`, `{"dra":true}`} {
		if _, err := read(t, keys); err == nil {
			t.Errorf("%s: no error", keys)
		}
	}
	if c, err := read(t, `{"dra":null}`); c.DRA != nil || err != nil {
		t.Errorf("null: %+v, %v", c.DRA, err)
	}
}

func TestClaimsNeedAClusterAndANode(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		conf Config
		env  map[string]string
		errs string
	}{
		{Config{}, nil, "dra needs a kubeconfig"},
		{Config{Node: "n1"}, nil, "dra needs a kubeconfig"},
		{Config{Kubeconfig: "/k"}, nil, "dra needs nodeName"},
		{Config{Kubeconfig: "/k", Reconcile: true}, nil, "dra needs nodeName"},
		{Config{Kubeconfig: "/k", Node: "n1"}, nil, ""},
		{Config{Kubeconfig: "/k"}, map[string]string{"NODE_NAME": "n1"}, ""},
		{Config{Kubeconfig: "/k", Node: "n1", DRA: &DRA{RollingUpdate: true}}, nil, "rollingUpdate needs POD_UID"},
		{Config{Kubeconfig: "/k", Node: "n1", DRA: &DRA{RollingUpdate: true}}, map[string]string{"POD_UID": "u1"}, ""},
	} {
		c := tt.conf
		if c.DRA == nil {
			c.DRA = &DRA{}
		}
		err := c.Discover(func(key string) string { return tt.env[key] }, t.TempDir()+"/none")
		if tt.errs == "" && err != nil || tt.errs != "" && (err == nil || !strings.Contains(err.Error(), tt.errs)) {
			t.Errorf("%+v: err = %v, want %q", tt.conf, err, tt.errs)
		}
		if err == nil && !c.watchPods() {
			t.Errorf("%+v: pods are not watched", tt.conf)
		}
	}
}
