package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/delegate/otel"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

const (
	traceOfRuntime = "0af7651916cd43dd8448eb211c80319c"
	traceparent    = "TRACEPARENT=00-" + traceOfRuntime + "-b7ad6b7169203331-01"
	traceOfPod     = "4bf92f3577b34da6a3ce929d0e0e4736"
)

// The variables of OpenTelemetry have each command traced, from the shim to the plugins, and
// nothing else does.
func TestVariablesTurnTracesOn(t *testing.T) { //nolint:paralleltest // it sets variables
	var mu sync.Mutex
	var service string
	var spans []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var got collector.ExportTraceServiceRequest
		body, err := io.ReadAll(r.Body)
		nodetest.OK(t, err)
		nodetest.OK(t, proto.Unmarshal(body, &got))
		mu.Lock()
		defer mu.Unlock()
		for _, from := range got.ResourceSpans {
			for _, a := range from.Resource.Attributes {
				if a.Key == "service.name" {
					service = a.Value.GetStringValue()
				}
			}
			for _, s := range from.ScopeSpans {
				for _, span := range s.Spans {
					spans = append(spans, span.Name)
				}
			}
		}
	}))
	defer server.Close()
	all := strings.Split("ADD bridge,CNI ADD,lock,queue,record,record", ",")
	for _, tt := range []struct {
		env     string
		service string
		want    []string
	}{
		{"", "", nil},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=" + server.URL, "multinetd", all},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_SERVICE_NAME=mine OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=" + server.URL + "/v1/traces", "mine", all},
		{"OTEL_TRACES_SAMPLER=always_off OTEL_EXPORTER_OTLP_ENDPOINT=" + server.URL, "", nil},
		{"OTEL_SDK_DISABLED=true OTEL_EXPORTER_OTLP_ENDPOINT=" + server.URL, "", nil},
		{"OTEL_TRACES_EXPORTER=none OTEL_EXPORTER_OTLP_ENDPOINT=" + server.URL, "", nil},
	} {
		t.Run(tt.env, func(t *testing.T) {
			for name := range strings.FieldsSeq(tt.env) {
				name, value, _ := strings.Cut(name, "=")
				t.Setenv(name, value)
			}
			w := newWorld(t, "")
			end := w.startTraces(t.Context(), os.Environ())
			w.client.Env = []string{traceparent}
			w.start(t).mustRun(t, "ADD", bridge)
			nodetest.OK(t, w.stop())
			end()
			mu.Lock()
			defer mu.Unlock()
			slices.Sort(spans)
			nodetest.Equal(t, "spans", spans, tt.want)
			nodetest.Equal(t, "service", service, tt.service)
			service, spans = "", nil
			if env := w.fake.Calls()[0].Env; !slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, "TRACEPARENT=00-"+traceOfRuntime) }) {
				t.Errorf("the plugin got %q", env)
			}
		})
	}
}

func TestNothingIsTracedIfAVariableIsWrong(t *testing.T) {
	t.Parallel()
	for _, env := range [][]string{
		{"OTEL_TRACES_EXPORTER=zipkin"}, {"OTEL_TRACES_EXPORTER=otlp", "OTEL_EXPORTER_OTLP_PROTOCOL=http/json"},
	} {
		w := newWorld(t, "")
		w.startTraces(t.Context(), env)()
		if w.traces != nil || !strings.Contains(w.logged.String(), "commands are not traced") || !strings.Contains(w.logged.String(), env[len(env)-1][:10]) {
			t.Errorf("%q: %v, log %s", env, w.traces, w.logged)
		}
	}
}

// A collector that never answers costs no ADD anything, and the end of the daemon little.
func TestCollectorThatHangsIsNotWaitedFor(t *testing.T) { //nolint:paralleltest // it sets variables
	hang := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	defer server.Close()
	defer close(hang)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
	w := newWorld(t, "")
	end := w.startTraces(t.Context(), os.Environ())
	w.start(t)
	w.mustRun(t, "ADD", bridge)
	w.mustRun(t, "DEL", bridge)
	nodetest.OK(t, w.stop())
	end()
	if !strings.Contains(w.logged.String(), "the last spans were not sent") {
		t.Errorf("log %s", w.logged)
	}
}

// The write of the pod's status is in the trace of the ADD, whether the ADD waits for it or not,
// and the trace of the pod is linked, which the daemon finds in the API if the runtime does not
// pass it.
func TestStatusAndPodBelongToTheTraceOfTheADD(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"wait", "async"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			w := inCluster(t, `,"nodeName":"n1","statusPolicy":"`+policy+`"`)
			kubetest.Put(w.api, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod-1", UID: "u", Annotations: map[string]string{otel.PodAnnotation: "00-" + traceOfPod + "-00f067aa0ba902b7-01"}},
				Spec:       corev1.PodSpec{NodeName: "n1"},
			})
			exporter := tracetest.NewInMemoryExporter()
			w.traces = sdk.NewTracerProvider(sdk.WithSyncer(exporter))
			w.client.Env = []string{traceparent}
			w.start(t)
			a := w.args(conf(bridge))
			a.Args += "K8S_POD_UID=u"
			nodetest.OK(t, w.client.Execute(context.WithoutCancel(t.Context()), "ADD", a))
			named := func(name string) tracetest.SpanStub {
				for _, s := range exporter.GetSpans() {
					if s.Name == name {
						return s
					}
				}
				return tracetest.SpanStub{}
			}
			w.until(t, "the status is traced", func() bool { return named("status").Name != "" })
			command := named("CNI ADD")
			nodetest.Equal(t, "parent", named("status").Parent.SpanID(), command.SpanContext.SpanID())
			nodetest.Equal(t, "trace", command.SpanContext.TraceID().String(), traceOfRuntime)
			if len(command.Links) == 0 || command.Links[0].SpanContext.TraceID().String() != traceOfPod {
				t.Errorf("links: %+v", command.Links)
			}
		})
	}
}
