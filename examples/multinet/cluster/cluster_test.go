package cluster

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/kube/dra"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/examples/multinet/sample"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

func newCluster(c Config) *Cluster {
	return New(c, Plugin{Dirs: func() []string { return nil }}, slog.New(slog.DiscardHandler))
}

// The socket answers probes and scrapes before the cluster has started.
func TestProbesAndScrapesMayComeBeforeTheStart(t *testing.T) {
	t.Parallel()
	c := newCluster(Config{Kubeconfig: "/nonexistent/kubeconfig"})
	if ok, err := c.Probe(t.Context()); ok || err == nil {
		t.Errorf("ready: %v, %v", ok, err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(sample.Collector(c.Sample))
	if found, err := registry.Gather(); len(found) > 0 || err != nil {
		t.Errorf("metrics %v, %v", found, err)
	}
}

// A daemon that starts while the records cannot be read writes the status of their pods as soon as
// they can. A damaged record among them stops none of the others.
func TestStatusesAreResumedWhenTheRecordsCanBeRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "state")
		attached := lifecycle.Adoption{Key: scratch.Key{Network: "multi", ContainerID: "c1", IfName: "eth0"}, Attached: []delegate.Attached{{
			Attachment: delegate.Attachment{
				Network: nodetest.Network("blue", "bridge"), ContainerID: "c1", IfName: "eth0", Origin: json.RawMessage(`{}`),
				Args: "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=one;K8S_POD_UID=u1",
			},
		}}}
		_, err := (&lifecycle.Manager{Dir: dir}).Adopt(t.Context(), attached)
		nodetest.OK(t, err)
		nodetest.OK(t, os.WriteFile(filepath.Join(dir, "c0@multi@eth0.json"), []byte("damaged"), 0o600))
		nodetest.OK(t, os.Rename(dir, dir+".away"))
		nodetest.OK(t, os.WriteFile(dir, nil, 0o600))
		c := New(Config{Kubeconfig: "/nonexistent/kubeconfig"}, Plugin{
			Dirs: func() []string { return []string{dir} }, System: func() plugin.System { return plugin.System{} },
		}, slog.New(slog.DiscardHandler))
		stop, err := c.Start(t.Context())
		nodetest.OK(t, err)
		defer stop()
		time.Sleep(time.Minute + resumePause/2) // between two attempts: a directory that is not there has no records
		nodetest.Equal(t, "pending while the records cannot be read", c.writer.Stats().Pending, 0)
		nodetest.OK(t, os.Remove(dir))
		nodetest.OK(t, os.Rename(dir+".away", dir))
		time.Sleep(resumePause)
		synctest.Wait()
		nodetest.Equal(t, "pending", c.writer.Stats().Pending, 1)
	})
}

func TestWithoutAClusterEveryMethodDoesNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(Config{})
	stop, err := c.Start(t.Context())
	nodetest.OK(t, err)
	defer stop()
	c.Changed(t.Context(), "c1", "")
	ctx, end := c.Adding(t.Context(), "c1", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b")
	end(nad.ErrForbidden)
	if m := c.Multinet(); ctx != t.Context() || m.Definition != nil || m.Annotations != nil || m.Attached != nil {
		t.Errorf("%v, %+v", ctx, m)
	}
	if ok, err := c.Probe(t.Context()); !ok || err != nil {
		t.Errorf("ready: %v, %v", ok, err)
	}
}

func TestAConfigurationThatCanNeverWorkIsAnError(t *testing.T) {
	t.Parallel()
	_, err := newCluster(Config{Kubeconfig: "/k", NADDir: "relative"}).Start(t.Context())
	nodetest.Says(t, err, `kubernetes: mirror: "relative" is not an absolute path`)
	c := New(Config{Kubeconfig: "/k", Node: "n1", DRA: &DRA{Driver: driverName}}, Plugin{Own: []byte(`{"type":"x","globalNamespaces":5}`)}, slog.New(slog.DiscardHandler))
	_, err = c.Start(t.Context())
	nodetest.Is(t, err, netconf.ErrDecode)
	nodetest.Says(t, err, "kubernetes: dra: ")
}

// The pods of all nodes would be too many to watch.
func TestAnnotationsNeedTheNameOfTheNode(t *testing.T) {
	t.Parallel()
	_, err := newCluster(Config{Kubeconfig: "/k"}).annotations(t.Context(), nad.Pod{Namespace: "a", Name: "b"})
	nodetest.Fails(t, err, 11, "nodeName")
}

func TestPageThatCannotBeServed(t *testing.T) {
	t.Parallel()
	page := func(c Config, query string) int {
		w := httptest.NewRecorder()
		newCluster(c).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, multinet.NetworkStatusPath+query, nil))
		return w.Code
	}
	nodetest.Equal(t, "a bad name", page(Config{Kubeconfig: "/k"}, "?namespace=a&name=../b"), http.StatusBadRequest)
	nodetest.Equal(t, "without a cluster", page(Config{}, ""), http.StatusNotImplemented)
}

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
	const driver = `"driver":"net.example.com"`
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
					Kubeconfig: "/etc/k", Node: "n1", StatusPolicy: "require", StatusTimeout: multinet.Duration(3 * time.Second), StatusRate: 2.5, StatusFor: statusForSelected,
					Events: "full", Reconcile: true, OnChange: "replace", PodWait: multinet.Duration(5 * time.Second), MaxViewAge: multinet.Duration(10 * time.Minute), KubeletDir: "/k", StartupTaint: "a.io/b",
				}
			},
		},
		{
			keys: `{"dra":{` + driver + `,"networks":[{"network":"kube-system/storage.v2","exclusive":true,"attributes":{"speed":"fast"}},{"device":"x","network":"My_Net"}],
				"metadata":true,"cdiDir":"/cdi","rollingUpdate":true}}`,
			want: func(c *Config) {
				c.DRA = &DRA{Driver: driverName, Metadata: true, CDIDir: "/cdi", RollingUpdate: true, Networks: []dra.Offer{
					{Network: "kube-system/storage.v2", Exclusive: true, Attributes: map[string]string{"speed": "fast"}}, {Device: "x", Network: "My_Net"},
				}}
			},
		},

		{keys: `{"kubeconfig":"k"}`, errs: "kubeconfig"},
		{keys: `{"kubeletDir":""}`, errs: "kubeletDir"},
		{keys: `{"startupTaint":"a.io/b=c:NoSchedule"}`, errs: "startupTaint"},
		{keys: `{"statusPolicy":"maybe"}`, errs: `statusPolicy "maybe"`},
		{keys: `{"statusFor":"none"}`, errs: `statusFor "none"`},
		{keys: `{"events":"loud"}`, errs: `events "loud"`},
		{keys: `{"onChange":"now"}`, errs: `onChange "now"`},
		{keys: `{"statusTimeout":"0s"}`, errs: "statusTimeout"},
		{keys: `{"statusRate":-1}`, errs: "statusRate -1 is negative"},
		{keys: `{"nadWait":"-1s"}`, errs: "nadWait"},
		{keys: `{"dra":{}}`, errs: "dra: driver: missing"},
		{keys: `{"dra":{` + driver + `,"cdiDir":"run/cdi"}}`, errs: `cdiDir "run/cdi"`},
		{keys: `{"dra":{` + driver + `,"networks":[{"network":"a","exclusve":true}]}}`, errs: `"exclusve"`},
		{keys: `{"dra":{` + driver + `,"networks":[{"network":"a/b"},{"network":"a/b","device":"c"}]}}`, errs: `dra: networks[1]: network "a/b" is listed twice`},
	} {
		got, err := read(t, tt.keys)
		if tt.errs != "" {
			nodetest.Says(t, err, tt.errs)
			continue
		}
		nodetest.OK(t, err)
		want := DefaultConfig()
		tt.want(&want)
		nodetest.Equal(t, tt.keys, got, want, cmpopts.IgnoreUnexported(DRA{}))
	}
}

const driverName = "net.example.com"

// A kubeconfig comes before the environment of a pod, and a pod without a token has no
// cluster. What needs a cluster, or the name of the node, says so.
func TestClusterIsFoundInTheEnvironment(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	nodetest.OK(t, os.WriteFile(token, []byte("secret"), 0o600))
	inPod := map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1", "NODE_NAME": "n1", "POD_NAMESPACE": "kube-system", "POD_NAME": "d", "POD_UID": "u1"}
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
		{name: "kubeconfig", conf: Config{Kubeconfig: "/k", Node: "n2"}, env: inPod, token: token, source: "/k", node: "n2"},
		{name: "pods of all nodes", conf: Config{Kubeconfig: "/k", Annotations: "api"}, token: token, errs: "nodeName"},
		{name: "running pods of all nodes", conf: Config{Kubeconfig: "/k", Reconcile: true}, token: token, errs: "nodeName"},
		{name: "running pods without a cluster", conf: Config{Reconcile: true}, token: token, source: "none"},
		{name: "the taint of no node", conf: Config{Kubeconfig: "/k", StartupTaint: "a"}, token: token, errs: "nodeName"},
		{name: "pods without a cluster", conf: Config{Annotations: "api", Node: "n1"}, token: token, errs: "kubeconfig"},
		{name: "claims without a cluster", conf: Config{Node: "n1", DRA: &DRA{}}, errs: "dra needs a kubeconfig"},
		{name: "claims of all nodes", conf: Config{Kubeconfig: "/k", Reconcile: true, DRA: &DRA{}}, errs: "dra needs nodeName"},
		{name: "claims of this node", conf: Config{Kubeconfig: "/k", DRA: &DRA{RollingUpdate: true}}, env: inPod, source: "/k", node: "n1"},
		{name: "claims and the next daemon", conf: Config{Kubeconfig: "/k", Node: "n1", DRA: &DRA{RollingUpdate: true}}, errs: "rollingUpdate needs POD_UID"},
	} {
		c := tt.conf
		err := c.Discover(func(key string) string { return tt.env[key] }, tt.token)
		if tt.errs != "" {
			nodetest.Says(t, err, tt.errs)
			continue
		}
		if err != nil || c.Source() != tt.source || c.On() != (tt.source != "none") || c.Node != tt.node || c.DRA != nil && !c.watchPods() {
			t.Errorf("%s: %v %q on node %q", tt.name, err, c.Source(), c.Node)
		}
	}
}
