package runtimes

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// An ADD is one trace, from the call of the CRI to the last plugin, and has a link to the
// trace in the pod's annotation. The trace is containerd's, which executes plugins by cni
// v1.3.1 (testdata/programs/go.mod), the first version that sets TRACEPARENT.
func TestTraceOfContainerdReachesThePlugins(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	m := newMember(t)
	m.env = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.URL, "OTEL_BSP_SCHEDULE_DELAY=50"}
	m.mkdir("bin")
	m.mkdir("traced")
	for _, plugin := range []string{"bridge", "portmap", "firewall"} {
		m.write("bin/"+plugin, fmt.Sprintf(`#!/bin/sh
[ $CNI_COMMAND != ADD ] || printf %%s "$TRACEPARENT" > "%s@$CNI_IFNAME"
exec %s
`, m.file("traced", plugin), bin(plugin)))
		if err := os.Chmod(m.file("bin", plugin), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	m.define("blue", m.bridge(1))
	m.writeJSON("net.d/10-primary.conflist", m.primary())
	m.startDaemon(m.daemonKeys(object{"binDir": m.file("bin")}))
	m.boot()
	m.waitForNetwork("multinet")
	p := m.create("blue")
	const traceOfPod = "4bf92f3577b34da6a3ce929d0e0e4736"
	p.config.Annotations["tracing.k8s.io/traceparent"] = "00-" + traceOfPod + "-00f067aa0ba902b7-01"
	p.run()

	// A program sends spans in the order of their ends: the CRI's call ends last, except
	// for the write of the status.
	var spans map[string]span
	eventually(t, func() bool {
		spans = c.all()
		return named(spans, "CNI ADD") != nil && named(spans, "status") != nil && named(spans, "runtime.v1.RuntimeService/RunPodSandbox") != nil
	})
	add := named(spans, "CNI ADD")[0]
	var callers, stages []string
	for s, ok := spans[string(add.ParentSpanId)]; ok; s, ok = spans[string(s.ParentSpanId)] {
		same(t, "trace of "+s.Name, add.trace(), s.trace())
		callers = append(callers, s.service+" "+s.Name)
	}
	same(t, "spans above the ADD", []string{
		"containerd cni.asynchAttach", "containerd cni.Setup", "containerd cni.setup_pod_network",
		"containerd cri.sandbox.run", "containerd runtime.v1.RuntimeService/RunPodSandbox",
	}, callers)
	want, got := map[string]string{}, map[string]string{} // TRACEPARENT by plugin and interface
	for _, s := range spans {
		if string(s.ParentSpanId) != string(add.SpanId) {
			continue
		}
		same(t, "trace of "+s.Name, add.trace(), s.trace())
		stages = append(stages, s.service+" "+s.Name)
		if plugin, ok := strings.CutPrefix(s.Name, "ADD "); ok {
			want[plugin+"@"+attribute(s.Attributes, "network.interface.name")] = fmt.Sprintf("00-%s-%x-01", s.trace(), s.SpanId)
		}
	}
	slices.Sort(stages)
	same(t, "spans below the ADD", []string{
		"multinetd ADD bridge", "multinetd ADD firewall", "multinetd ADD portmap",
		"multinetd lock", "multinetd queue", "multinetd record", "multinetd status",
	}, slices.Compact(stages))
	for _, file := range m.glob("traced/*") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got[filepath.Base(file)] = string(text)
	}
	same(t, "TRACEPARENT of the plugins", want, got)
	same(t, "plugins", []string{"bridge@eth0", "bridge@net1", "firewall@eth0", "portmap@eth0"}, slices.Sorted(maps.Keys(got)))
	var links []string
	for _, l := range add.Links {
		links = append(links, fmt.Sprintf("%x", l.TraceId))
	}
	same(t, "traces of the links", []string{traceOfPod}, links)
	p.stop()
	m.wantNothing()
}

// A span is one that a program, the service, has sent.
type span struct {
	*trace.Span

	service string
}

func (s span) trace() string { return fmt.Sprintf("%x", s.TraceId) }

// named returns the spans of a name.
func named(spans map[string]span, name string) (list []span) {
	for _, s := range spans {
		if s.Name == name {
			list = append(list, s)
		}
	}
	return list
}

// attribute returns the text of an attribute, or nothing.
func attribute(list []*common.KeyValue, key string) string {
	for _, a := range list {
		if a.Key == key {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

// A collector keeps the spans that it is sent over OTLP.
type collector struct {
	URL string

	mu    sync.Mutex
	spans map[string]span // by ID
}

// newCollector starts a collector, which ends with the test.
func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{spans: map[string]span{}}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var got trace.TracesData // has the fields of the request
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = proto.Unmarshal(body, &got)
		}
		if err != nil {
			t.Error(err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, from := range got.ResourceSpans {
			for _, list := range from.ScopeSpans {
				for _, s := range list.Spans {
					c.spans[string(s.SpanId)] = span{s, attribute(from.Resource.Attributes, "service.name")}
				}
			}
		}
	}))
	t.Cleanup(server.Close)
	c.URL = server.URL
	return c
}

// all returns the spans that have been sent until now, by ID.
func (c *collector) all() map[string]span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.spans)
}
