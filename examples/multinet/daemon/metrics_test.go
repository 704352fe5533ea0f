package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/otel"
	"github.com/metacni/metacni/delegate/thick"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// series reads metrics as they are served: values by name and labels.
func series(t *testing.T, text string) map[string]float64 {
	t.Helper()
	all := make(map[string]float64)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(line[i+1:], 64)
		if i < 0 || err != nil {
			t.Fatalf("not a metric: %q: %v", line, err)
		}
		all[line[:i]] = value
	}
	return all
}

// wantSeries fails unless metrics have these values.
func wantSeries(t *testing.T, got, want map[string]float64) {
	t.Helper()
	for name, value := range want {
		if has, ok := got[name]; !ok || has != value {
			t.Errorf("%s is %v (%t), want %v", name, has, ok, value)
		}
	}
}

// final are the metrics of a daemon that has ended: what is counted after an
// answer has been.
func (w *world) final(t *testing.T) map[string]float64 {
	t.Helper()
	nodetest.OK(t, w.stop())
	a := httptest.NewRecorder()
	w.metrics.handler().ServeHTTP(a, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	return series(t, a.Body.String())
}

// Requests, operations and plugins are counted.
func TestRequestsOperationsAndPluginsAreCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `,"multusMetrics":true,"metricsAddress":"127.0.0.1:0"`).start(t)
	w.mustRun(t, "ADD", bridge)
	w.mustRun(t, "DEL", bridge)
	nodetest.Refused(t, "ADD", w.run(t, "ADD", `"delegates":[{"type":"full"}]`))
	nodetest.Refused(t, "ADD", w.run(t, "ADD", `"delegates":5`))
	_, _ = w.get(t, "/delegate")
	tcp := linesOf(t, w.logged, "serving metrics")[0]["address"].(string)
	for path, want := range map[string]int{"/metrics": 200, "/readyz": 200, "/healthz": 200, "/cni": 404, "/delegate": 404, "/info": 404, "//metrics": 404} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+tcp+path, nil)
		nodetest.OK(t, err)
		a, err := http.DefaultClient.Do(r)
		nodetest.OK(t, err)
		nodetest.OK(t, a.Body.Close())
		nodetest.Equal(t, path+" over TCP", a.StatusCode, want)
	}
	got := w.final(t)
	wantSeries(t, got, map[string]float64{
		`multinetd_requests_total{code="200",handler="/cni",method="post"}`:                 2,
		`multinetd_requests_total{code="500",handler="/cni",method="post"}`:                 2,
		`multus_server_request_total{code="200",handler="/cni",method="post"}`:              2,
		`multinetd_operation_duration_seconds_count{command="ADD",outcome="ok"}`:            1,
		`multinetd_operation_duration_seconds_count{command="ADD",outcome="failed"}`:        2,
		`multinetd_operation_duration_seconds_bucket{command="DEL",outcome="ok",le="+Inf"}`: 1,
		`multinetd_delegate_executions_total{command="ADD",outcome="ok",type="bridge"}`:     1,
		`multinetd_delegate_executions_total{command="ADD",outcome="failed",type="full"}`:   1,
		`multinetd_delegate_executions_total{command="DEL",outcome="ok",type="full"}`:       1,
		`multinetd_delegate_duration_seconds_count{command="DEL",type="bridge"}`:            1,
		`multinetd_stage_duration_seconds_count{command="ADD",stage="queue"}`:               3,
		`multinetd_stage_duration_seconds_count{command="ADD",stage="lock"}`:                2,
		`multinetd_stage_duration_seconds_count{command="ADD",stage="record"}`:              4,
		`multinetd_stage_duration_seconds_count{command="DEL",stage="record"}`:              2,
		`multinetd_delegate_undos_total`:                                                    1,
		`multinetd_peers_refused_total`:                                                     0,
		`multinetd_operations_in_flight{lane="add"}`:                                        0,
		`multinetd_operations_queued{lane="del"}`:                                           0,
	})
	for _, name := range []string{"go_goroutines", "process_open_fds"} {
		nodetest.Equal(t, name+" is there", got[name] > 0, true)
	}
}

// The number of series is limited, whatever requests contain.
func TestNumberOfSeriesIsLimited(t *testing.T) {
	t.Parallel()
	m := newMetrics(false)
	for i := range 1000 {
		m.delegate(delegate.Event{Plugin: fmt.Sprintf("p%d", i), Command: delegate.Command(fmt.Sprintf("C%d", i))})(nil)
		m.delegate(delegate.Event{Plugin: strings.Repeat("x", i+33), Command: delegate.CommandAdd})(nil)
		m.delegate(delegate.Event{Plugin: fmt.Sprintf("a/../%d\n", i), Command: delegate.CommandAdd})(nil)
		m.request(thick.Event{Path: fmt.Sprintf("/%d", i), Command: fmt.Sprintf("C%d", i), Status: 404})
	}
	families, err := m.Gather()
	nodetest.OK(t, err)
	for _, f := range families {
		if n := len(f.GetMetric()); n > maxTypes+2 {
			t.Errorf("%s has %d series", f.GetName(), n)
		}
	}
}

// The previous daemon keeps the address until it has ended, which is after it has
// left the socket. Meanwhile shims are served.
func TestMetricsAddressMayBeInUseAtFirst(t *testing.T) {
	t.Parallel()
	before, err := net.Listen("tcp", "127.0.0.1:0")
	nodetest.OK(t, err)
	keys := fmt.Sprintf(`,"metricsAddress":%q`, before.Addr())
	never := newWorld(t, keys).start(t)
	never.mustRun(t, "ADD", bridge)
	nodetest.Code(t, never.stop(), 0)
	w := newWorld(t, keys).start(t)
	nodetest.OK(t, before.Close())
	for len(linesOf(t, w.logged, "serving metrics")) == 0 {
		runtime.Gosched()
	}
	w.mustRun(t, "ADD", bridge)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+before.Addr().String()+"/healthz", nil)
	nodetest.OK(t, err)
	a, err := http.DefaultClient.Do(r)
	nodetest.OK(t, err)
	nodetest.OK(t, a.Body.Close())
	nodetest.Equal(t, "/healthz over TCP", a.StatusCode, http.StatusOK)
}

// net/http closes the connections of clients that ask or read too slowly, if it has limits.
func TestSlowMetricsClientsHaveLimits(t *testing.T) {
	t.Parallel()
	s := metricsServer(nil, slog.New(slog.DiscardHandler))
	if s.ReadTimeout <= 0 || s.WriteTimeout <= 0 || s.MaxHeaderBytes <= 0 {
		t.Errorf("%+v", s)
	}
}

// linesOf are the lines of a log with a message, each a JSON object.
func linesOf(t *testing.T, log *nodetest.Log, msg string) (found []map[string]any) {
	t.Helper()
	for line := range strings.Lines(log.String()) {
		var keys map[string]any
		if err := json.Unmarshal([]byte(line), &keys); err != nil {
			t.Fatalf("not JSON: %q: %v", line, err)
		}
		if keys["msg"] == msg {
			found = append(found, keys)
		}
	}
	return found
}

// Each request has one line with everything that an operator looks for.
func TestEachRequestHasOneLogLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "").start(t)
	w.mustRun(t, "STATUS", bridge) // at level debug only
	w.mustRun(t, "ADD", bridge)
	nodetest.Refused(t, "the second ADD", w.run(t, "ADD", bridge))
	nodetest.OK(t, w.stop()) // the line comes after the answer
	lines := linesOf(t, w.logged, "request")
	if len(lines) != 2 {
		t.Fatalf("log:\n%s", w.logged)
	}
	slices.SortFunc(lines, func(a, b map[string]any) int { return strings.Compare(a["level"].(string), b["level"].(string)) })
	for key, want := range map[string]any{
		"level": "INFO", "command": "ADD", "container": "c1", "ifname": "eth0", "network": "multi",
		"pod_namespace": "ns", "pod": "pod-1", "status": 200.0,
	} {
		nodetest.Equal(t, key, lines[0][key], want)
	}
	if lines[0]["duration"] == nil || lines[0]["error"] != nil {
		t.Errorf("line %v", lines[0])
	}
	if failed := lines[1]; failed["level"] != "WARN" || failed["code"] != 7.0 || !strings.Contains(failed["error"].(string), "already added") {
		t.Errorf("line %v", failed)
	}
}

// The line of a slow ADD says where the time went, and there is no other line about it.
func TestSlowADDHasOneLogLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `,"slowAfter":"0s"`).start(t)
	w.mustRun(t, "ADD", bridge+`,"slowAfter":"0s"`)
	w.mustRun(t, "DEL", bridge)
	nodetest.OK(t, w.stop())
	nodetest.Equal(t, "lines with a timing", w.logged.Count("timing"), 1)
	for _, line := range linesOf(t, w.logged, "request") {
		timing, _ := line["timing"].(map[string]any)
		if is := line["command"] == "ADD"; is != (line["level"] == "WARN") || is != (timing != nil) {
			t.Errorf("line %v", line)
		}
		if plugins, _ := timing["plugins"].(string); timing != nil && (!strings.HasPrefix(plugins, "ADD bridge multi eth0 ") || timing["lock"] == nil || timing["record"] == nil) {
			t.Errorf("timing %v", timing)
		}
	}
}

const (
	traceOfRuntime = "0af7651916cd43dd8448eb211c80319c"
	traceparent    = "TRACEPARENT=00-" + traceOfRuntime + "-b7ad6b7169203331-01"
	traceOfPod     = "4bf92f3577b34da6a3ce929d0e0e4736"
)

// The variables of OpenTelemetry have each command traced, from the shim to the plugins, and
// nothing else does.
func TestVariablesTurnTracesOn(t *testing.T) { //nolint:paralleltest // it sets variables
	var sent nodetest.Log // protobuf, in which strings are as they are
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(&sent, r.Body)
		nodetest.Equal(t, "error", err, nil)
	}))
	defer server.Close()
	for _, tt := range []struct{ env, service string }{
		{"", ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=" + server.URL, "multinetd"},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_SERVICE_NAME=mine OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=" + server.URL + "/v1/traces", "mine"},
		{"OTEL_TRACES_SAMPLER=always_off OTEL_EXPORTER_OTLP_ENDPOINT=" + server.URL, ""},
		{"OTEL_SDK_DISABLED=true OTEL_EXPORTER_OTLP_ENDPOINT=" + server.URL, ""},
		{"OTEL_TRACES_EXPORTER=none OTEL_EXPORTER_OTLP_ENDPOINT=" + server.URL, ""},
	} {
		t.Run(tt.env, func(t *testing.T) {
			for name := range strings.FieldsSeq(tt.env) {
				name, value, _ := strings.Cut(name, "=")
				t.Setenv(name, value)
			}
			w := newWorld(t, "")
			end := w.startTraces(t.Context(), os.Environ())
			w.client.Env = []string{traceparent}
			before := len(sent.String())
			w.start(t).mustRun(t, "ADD", bridge)
			nodetest.OK(t, w.stop())
			end()
			text := sent.String()[before:]
			nodetest.Equal(t, "sends spans", text != "", tt.service != "")
			if tt.service != "" {
				nodetest.Contains(t, "what is sent", text, "service.name", tt.service, "CNI ADD", "ADD bridge", "lock", "queue", "record")
			}
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
	nodetest.Contains(t, "log", w.logged.String(), "the last spans were not sent")
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
			nodetest.OK(t, w.stop())
			var names []string
			for _, s := range exporter.GetSpans() {
				names = append(names, s.Name)
			}
			slices.Sort(names)
			nodetest.Equal(t, "spans", names, strings.Split("ADD bridge,CNI ADD,lock,queue,record,record,status", ","))
			command := named("CNI ADD")
			nodetest.Equal(t, "parent", named("status").Parent.SpanID(), command.SpanContext.SpanID())
			nodetest.Equal(t, "trace", command.SpanContext.TraceID().String(), traceOfRuntime)
			if len(command.Links) == 0 || command.Links[0].SpanContext.TraceID().String() != traceOfPod {
				t.Errorf("links: %+v", command.Links)
			}
		})
	}
}
