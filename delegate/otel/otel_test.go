package otel_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	gocmp "github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	api "go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/otel"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/resident"
	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/delegate/thick/shim"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

const (
	traceOfRuntime = "0af7651916cd43dd8448eb211c80319c"
	spanOfRuntime  = "b7ad6b7169203331"
	traceparent    = "TRACEPARENT=00-" + traceOfRuntime + "-" + spanOfRuntime + "-01"
	podTrace       = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
)

// A node is one whose plugin traces.
type node struct {
	*nodetest.Node
	exporter *tracetest.InMemoryExporter
	provider *trace.TracerProvider
}

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{Node: nodetest.New(t, "bridge", "macvlan"), exporter: tracetest.NewInMemoryExporter()}
	n.provider = trace.NewTracerProvider(trace.WithSyncer(n.exporter), trace.WithIDGenerator(new(counter)))
	return n
}

// A counter numbers the spans in the order in which they begin.
type counter struct{ atomic.Uint64 }

func (c *counter) NewIDs(ctx context.Context) (id api.TraceID, span api.SpanID) {
	span = c.NewSpanID(ctx, id)
	copy(id[:], span[:])
	return id, span
}

func (c *counter) NewSpanID(context.Context, api.TraceID) (id api.SpanID) {
	binary.BigEndian.PutUint64(id[:], c.Add(1))
	return id
}

// spans are the spans that have ended, in the order in which they began.
func (n *node) spans() tracetest.SpanStubs {
	all := n.exporter.GetSpans()
	slices.SortFunc(all, func(a, b tracetest.SpanStub) int {
		return cmp.Compare(a.SpanContext.SpanID().String(), b.SpanContext.SpanID().String())
	})
	return all
}

// tree has a line for each span below parent in the trace of the runtime, with spaces for its
// depth.
func tree(spans tracetest.SpanStubs, parent, indent string) (lines []string) {
	for _, s := range spans {
		if s.Parent.SpanID().String() == parent && s.SpanContext.TraceID().String() == traceOfRuntime {
			lines = append(lines, indent+s.Name)
			lines = append(lines, tree(spans, s.SpanContext.SpanID().String(), indent+" ")...)
		}
	}
	return lines
}

// parent returns the TRACEPARENT of the first span with this name.
func (n *node) parent(name string) string {
	n.Helper()
	spans := n.spans()
	i := slices.IndexFunc(spans, func(s tracetest.SpanStub) bool { return s.Name == name })
	if i < 0 {
		n.Fatalf("no span %q", name)
	}
	return variable(spans[i])
}

func variable(s tracetest.SpanStub) string {
	return "TRACEPARENT=00-" + s.SpanContext.TraceID().String() + "-" + s.SpanContext.SpanID().String() + "-01"
}

// small is a meta-plugin with a step after each network.
func (n *node) small(step func(context.Context, *plugin.Call) error) plugin.Plugin {
	p := plugin.Plugin{
		StateDir: n.Path("state"),
		Networks: func(_ context.Context, c *plugin.Call) ([]netconf.Network, error) {
			conf, err := plugin.Config[struct{ Delegates []netconf.Network }](c)
			if err == nil && step != nil {
				err = c.Append(conf.Delegates, "rule", struct{}{})
			}
			return conf.Delegates, err
		},
	}
	if step != nil {
		p.Steps = map[string]plugin.Step{"rule": {Add: step}}
	}
	return p
}

const two = `{"cniVersion":"1.1.0","name":"n","type":"small","delegates":[{"type":"bridge","password":"hunter2hunter2"},{"type":"macvlan"}]}`

func args() skel.CmdArgs {
	return skel.CmdArgs{ContainerID: "c1", IfName: "eth0", Netns: "/absent", Path: "/bin", StdinData: []byte(two)}
}

// process is a thin plugin's process with more variables.
func (n *node) process(env ...string) plugin.System {
	return plugin.System{Exec: n.Exec, Env: env, Stdout: new(bytes.Buffer), InterfaceNames: func(string) ([]string, error) { return nil, nil }}
}

func (n *node) do(p plugin.Plugin, command delegate.Command, env ...string) error {
	return p.Do(n.Context(), otel.Traced(n.process(env...), n.provider), command, args())
}

// traceOf returns the variables of a trace that the last call that begins with prefix got.
func (n *node) traceOf(prefix string) []string {
	n.Helper()
	return slices.DeleteFunc(slices.Clone(n.Last(prefix).Env), func(e string) bool {
		return !strings.HasPrefix(e, "TRACE") && !strings.HasPrefix(e, "BAGGAGE")
	})
}

func TestCommandIsTracedFromTheRuntimeToItsPlugins(t *testing.T) {
	t.Parallel()
	add := "CNI ADD, lock, record, ADD bridge, record, ADD macvlan, record"
	for name, tt := range map[string]struct {
		fail    string
		command delegate.Command
		want    string
	}{
		"ADD":             {"", "ADD", add},
		"ADD that fails":  {"ADD macvlan", "ADD", "CNI ADD, lock, record, ADD bridge, record, ADD macvlan, undo,  DEL macvlan,  DEL bridge, record, record"},
		"STATUS":          {"", "STATUS", "CNI STATUS, STATUS bridge, STATUS macvlan"},
		"ADD and the DEL": {"", "DEL", add + ", CNI DEL, lock, record, DEL macvlan, record, DEL bridge, record"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			if tt.fail != "" {
				n.FailOn(tt.fail, 107)
			}
			if tt.command == "DEL" {
				nodetest.OK(t, n.do(n.small(nil), "ADD", traceparent))
			}
			nodetest.Equal(t, "failed", n.do(n.small(nil), tt.command, traceparent) != nil, tt.fail != "")
			var lines []string
			for _, line := range tree(n.spans(), spanOfRuntime, "") {
				lines = append(lines, strings.TrimPrefix(line, " "))
			}
			nodetest.Equal(t, "spans", strings.Join(lines, ", "), tt.want)
		})
	}
}

func TestPluginGetsTheSpanOfItsInvocation(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	var ofStep []string
	p := n.small(func(ctx context.Context, c *plugin.Call) error {
		ofStep = c.System.Env
		nodetest.Equal(t, "the step has a span", api.SpanContextFromContext(ctx).IsValid(), true)
		return nil
	})
	nodetest.OK(t, n.do(p, "ADD", traceparent, "TRACESTATE=vendor=1", "BAGGAGE=user=me"))
	for _, add := range []string{"ADD bridge", "ADD macvlan"} {
		nodetest.Equal(t, add, n.traceOf(add), []string{"BAGGAGE=user=me", n.parent(add), "TRACESTATE=vendor=1"})
	}
	steps := slices.DeleteFunc(n.spans(), func(s tracetest.SpanStub) bool { return s.Name != "ADD small/rule" })
	nodetest.Equal(t, "the last step got its span", slices.Contains(ofStep, variable(steps[len(steps)-1])), true)
}

func TestFailureHasTheCodeAndNoConfiguration(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.On("ADD bridge", func(_ context.Context, c delegatetest.Invocation) error {
		return types.NewError(107, "bad password in "+string(c.Stdin)+"\xff"+strings.Repeat("long ", 1000), "")
	})
	if n.do(n.small(nil), "ADD", traceparent) == nil {
		t.Fatal("the ADD did not fail")
	}
	failed := map[string]string{}
	for _, s := range n.spans() {
		for _, a := range s.Attributes {
			if a.Key == "cni.error.code" || a.Key == "error.type" {
				failed[s.Name] += fmt.Sprintf("%s=%s ", a.Key, a.Value.String())
			}
		}
		if text := fmt.Sprintf("%+v", s); strings.Contains(text, "hunter2") || len(s.Status.Description) > 512 || strings.Contains(text, "\xff") {
			t.Errorf("%s: %s", s.Name, text)
		}
	}
	code := "cni.error.code=107 error.type=107 "
	nodetest.Equal(t, "failed", failed, map[string]string{"CNI ADD": code, "ADD bridge": code})
}

// A runtime, a shim, a daemon and its delegate are in one trace. The wait for the turn is a part
// of the command, whether the runtime traces or not.
func TestTraceIsUnbrokenFromTheShimToTheDelegate(t *testing.T) {
	t.Parallel()
	for name, env := range map[string][]string{"traced": {traceparent}, "not traced": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			nodetest.OK(t, n.serve(&thick.Server{}, "ADD", env...))
			spans := n.spans()
			var lines []string
			for _, s := range spans {
				lines = append(lines, s.Name)
				nodetest.Equal(t, "trace", s.SpanContext.TraceID(), spans[0].SpanContext.TraceID())
			}
			nodetest.Equal(t, "spans", lines, strings.Split("CNI ADD,queue,lock,record,ADD bridge,record,ADD macvlan,record", ","))
			nodetest.Equal(t, "the wait is in the command", []bool{spans[0].StartTime.Equal(spans[1].StartTime), spans[1].EndTime.Before(spans[0].EndTime)}, []bool{true, true})
			nodetest.Equal(t, "of the runtime", spans[0].Parent.IsValid(), env != nil)
			nodetest.Equal(t, "macvlan", n.traceOf("ADD macvlan"), []string{n.parent("ADD macvlan")})
		})
	}
}

// serve has s execute a command for a shim, and returns what the shim does.
func (n *node) serve(s *thick.Server, command string, env ...string) error {
	n.Helper()
	s.Plugin, s.System = n.small(nil), func() plugin.System { return n.process() }
	s.Trace = func(p plugin.System) plugin.System { return otel.Traced(p, n.provider) }
	socket := filepath.Join(nodetest.ShortDir(n), "s")
	l, err := new(net.ListenConfig).Listen(n.Context(), "unix", socket)
	nodetest.OK(n, err)
	ctx, stop := context.WithCancel(n.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	a := args()
	err = (&shim.Client{Socket: socket, Stdout: new(bytes.Buffer), Env: env}).Execute(n.Context(), command, &a)
	stop()
	nodetest.OK(n, <-ended)
	return err
}

func TestObserverAndStagesOfTheProcessAreCalled(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	var lines []string
	note := func(ctx context.Context, what string) (context.Context, func(error)) {
		nodetest.Equal(t, what+" has a span", api.SpanContextFromContext(ctx).IsValid(), true)
		return ctx, func(error) { lines = append(lines, what) }
	}
	process := n.process()
	process.Observer = func(ctx context.Context, e delegate.Event) (context.Context, func(error)) { return note(ctx, e.Plugin) }
	process.Stages = func(ctx context.Context, s delegate.Stage, _ delegate.Event) (context.Context, func(error)) {
		return note(ctx, string(s))
	}
	nodetest.OK(t, n.small(nil).Do(t.Context(), otel.Traced(process, n.provider), "STATUS", args()))
	nodetest.Equal(t, "ended", lines, []string{"bridge", "macvlan", "command"})
}

func TestTraceOfThePodIsLinked(t *testing.T) {
	t.Parallel()
	for annotation, want := range map[string]string{
		podTrace: podTrace[3:35],
		"":       "", "00-1-2-01": "", "00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01": "",
		strings.Repeat("00-", 1<<17): "", "ff-" + podTrace[3:]: "", podTrace + "\xff\x00": "",
	} {
		n := newNode(t)
		ctx, span := n.provider.Tracer("").Start(t.Context(), "CNI ADD")
		otel.Pod(ctx, nad.PodOf("K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p\xff;K8S_POD_UID="+strings.Repeat("u", 1<<20)), map[string]string{otel.PodAnnotation: annotation})
		span.End()
		got := n.spans()[0]
		links := ""
		for _, l := range got.Links {
			links += l.SpanContext.TraceID().String()
		}
		nodetest.Equal(t, "links to "+annotation[:min(len(annotation), 60)], links, want)
		nodetest.Equal(t, "attributes", got.Attributes, []attribute.KeyValue{
			attribute.String("k8s.namespace.name", "ns"), attribute.String("k8s.pod.name", "p"), attribute.String("k8s.pod.uid", strings.Repeat("u", 512)),
		}, gocmp.AllowUnexported(attribute.Value{}))
	}
	otel.Pod(t.Context(), nad.Pod{Name: "p"}, nil) // without a span
}

func TestHostileTraceOfTheRuntimeIsIgnored(t *testing.T) {
	t.Parallel()
	for _, env := range [][]string{
		{"TRACEPARENT=00-1-2-01", "TRACESTATE=a=1"},
		{"TRACEPARENT"},
		{"TRACEPARENT=" + strings.Repeat("x", 1<<20)},
		{traceparent, "TRACEPARENT=" + traceparent},
		{"TRACESTATE=" + strings.Repeat("a=1,", 10000)},
	} {
		n := newNode(t)
		nodetest.OK(t, n.do(n.small(nil), "ADD", env...))
		nodetest.Equal(t, "in the trace of the runtime", tree(n.spans(), spanOfRuntime, ""), nil)
		nodetest.Equal(t, "of the plugin", n.traceOf("ADD bridge"), []string{n.parent("ADD bridge")})
	}
	n := newNode(t)
	nodetest.OK(t, n.do(n.small(nil), "ADD", traceparent, "TRACESTATE=\xff,,,"))
	nodetest.Equal(t, "spans with a hostile TRACESTATE", len(tree(n.spans(), spanOfRuntime, "")), len(n.spans()))
}

// Without a command, as in the sweeps of a daemon, there is nothing to trace.
func TestNothingIsTracedOutsideOfACommand(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	process := otel.Traced(n.process(traceparent), n.provider)
	_, err := process.NewManager(n.Path("state"), "small", nil).Invoker.Add(t.Context(), delegate.Attachment{
		Network: nodetest.Network("n", "bridge"), ContainerID: "c1", NetNS: "/absent", IfName: "eth0",
	})
	nodetest.OK(t, err)
	nodetest.Equal(t, "spans", len(n.spans()), 0)
	nodetest.Equal(t, "of the plugin", n.traceOf("ADD bridge"), nil)
}

// A program that does not trace passes the trace on.
func TestProviderThatDoesNothingPassesTheTraceOn(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	nodetest.OK(t, n.small(nil).Do(t.Context(), otel.Traced(n.process(traceparent), noop.NewTracerProvider()), "ADD", args()))
	nodetest.Equal(t, "of the plugin", n.traceOf("ADD bridge"), []string{traceparent})
}

// A command that is refused before the plugin is asked is traced: in the queue, and a STATUS of a daemon that
// is not ready.
func TestRefusalIsTraced(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	_, ended := otel.Traced(n.process(traceparent), n.provider).Stages.Begin(t.Context(), delegate.StageQueue, delegate.Event{Command: "ADD"})
	ended(types.NewError(11, "timed out in the queue", ""))
	nodetest.Equal(t, "spans", tree(n.spans(), spanOfRuntime, ""), []string{"CNI ADD", " queue"})

	n = newNode(t)
	s := &thick.Server{Ready: func(context.Context) error { return errors.New("no API server") }}
	nodetest.Code(t, n.serve(s, "STATUS", traceparent), 50)
	nodetest.Equal(t, "spans", tree(n.spans(), spanOfRuntime, ""), []string{"CNI STATUS", " queue"})
	nodetest.Equal(t, "status", n.spans()[0].Status.Code, codes.Error)
	nodetest.Equal(t, "its code", slices.Contains(n.spans()[0].Attributes, attribute.Int64("cni.error.code", 50)), true)
}

func TestResidentPluginGetsTheSpanOfItsInvocation(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	socket := filepath.Join(nodetest.ShortDir(t), "s")
	l, err := net.Listen("unix", socket)
	nodetest.OK(t, err)
	host := &resident.Host{Listener: l, Reserve: []string{"macvlan"}}
	nodetest.OK(t, host.Start(t.Context()))
	var env []string
	stays := &resident.Resident{Index: "10", Name: "stays", Types: []string{"macvlan"}, Plugin: plugin.Plugin{Add: func(_ context.Context, c *plugin.Call) error {
		env = c.System.Env
		_, err := c.System.Stdout.Write([]byte(`{"cniVersion":"1.1.0"}`))
		return err
	}}}
	go func() { _ = stays.Run(t.Context(), socket) }()
	nodetest.Until(t, "the resident plugin is ready", func() bool {
		return slices.ContainsFunc(host.Plugins(), func(s resident.Status) bool { return s.State == resident.Ready })
	})
	process := n.process(traceparent, "BAGGAGE=user=me")
	process.Exec = host.Exec(n.Exec)
	nodetest.OK(t, n.small(nil).Do(t.Context(), otel.Traced(process, n.provider), "ADD", args()))
	nodetest.OK(t, host.Stop(t.Context()))
	for _, want := range []string{n.parent("ADD macvlan"), "BAGGAGE=user=me"} {
		nodetest.Equal(t, want, slices.Contains(env, want), true)
	}
}
