package cluster

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/examples/multinetd/sample"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
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
	if err == nil || err.Error() != `kubernetes: mirror: "relative" is not an absolute path` {
		t.Error(err)
	}
}

// The pods of all nodes would be too many to watch.
func TestAnnotationsNeedTheNameOfTheNode(t *testing.T) {
	t.Parallel()
	_, err := newCluster(Config{Kubeconfig: "/k"}).annotations(t.Context(), nad.Pod{Namespace: "a", Name: "b"})
	if err == nil || !strings.Contains(err.Error(), "nodeName") || status.Code(err) != 11 {
		t.Errorf("%v (code %d)", err, status.Code(err))
	}
}

func TestPageThatCannotBeServed(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]int{"?namespace=a&name=../b": http.StatusBadRequest, "": http.StatusBadRequest} {
		w := httptest.NewRecorder()
		newCluster(Config{Kubeconfig: "/k"}).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, multinet.NetworkStatusPath+query, nil))
		if w.Code != want {
			t.Errorf("%q: status %d, want %d", query, w.Code, want)
		}
	}
	w := httptest.NewRecorder()
	newCluster(Config{}).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, multinet.NetworkStatusPath, nil))
	if w.Code != http.StatusNotImplemented {
		t.Errorf("without a cluster: status %d", w.Code)
	}
}

func TestARuleThatCannotBeReadEndsTheDaemon(t *testing.T) {
	t.Parallel()
	c := New(Config{Kubeconfig: "/k", Node: "n1", DRA: &DRA{Driver: driverName}}, Plugin{Own: []byte(`{"type":"x","globalNamespaces":5}`)}, slog.New(slog.DiscardHandler))
	if _, err := c.Start(t.Context()); !errors.Is(err, netconf.ErrDecode) || !strings.HasPrefix(err.Error(), "kubernetes: dra: ") {
		t.Error(err)
	}
}
