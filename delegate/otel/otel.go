package otel

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// PodAnnotation is the annotation of a pod with the trace of its creation, in the form of
// TRACEPARENT.
const PodAnnotation = "tracing.k8s.io/traceparent"

const (
	scope = "github.com/metacni/metacni/delegate/otel"

	// maxText is the limit of a text in a span, in bytes.
	maxText = 512
)

// Traced returns s with spans of provider, which must not be nil, for the command that a
// plugin executes with it. If the context of the command has a span, that is their parent;
// otherwise it is the span in TRACEPARENT and TRACESTATE of s.Env. Values that are not valid
// are ignored. The returned Env lacks both variables: each plugin gets those of its
// invocation's span. BAGGAGE stays.
//
// The Observer and the Stages that s has are called as before, with contexts that have the
// spans. Use the returned System for one command at a time: commands at the same time get the
// wait in the queue of one another.
func Traced(s plugin.System, provider trace.TracerProvider) plugin.System {
	t := &tracing{tracer: provider.Tracer(scope), parent: propagation.MapCarrier{}, observer: s.Observer, stages: s.Stages}
	s.Env = slices.DeleteFunc(slices.Clone(s.Env), func(e string) bool {
		name, value, _ := strings.Cut(e, "=")
		if name != traceparent && name != tracestate {
			return false
		}
		t.parent[strings.ToLower(name)] = value // the last one counts
		return true
	})
	s.Observer, s.Stages = t.observe, t.stage
	return s
}

// The variables of a trace that this package reads and sets.
const (
	traceparent = "TRACEPARENT"
	tracestate  = "TRACESTATE"
)

// Pod says for which pod the command of ctx is executed. The command's span gets the pod's
// namespace, name and UID as attributes, and a link to the trace in the annotation
// [PodAnnotation], if it is in annotations and valid. Without a span in ctx Pod does nothing.
func Pod(ctx context.Context, p nad.Pod, annotations map[string]string) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(texts("k8s.namespace.name", p.Namespace, "k8s.pod.name", p.Name, "k8s.pod.uid", p.UID)...)
	to := propagation.TraceContext{}.Extract(context.WithoutCancel(ctx), propagation.MapCarrier{"traceparent": annotations[PodAnnotation]})
	if link := trace.SpanContextFromContext(to); link.IsRemote() {
		span.AddLink(trace.Link{SpanContext: link})
	}
}

// A tracing makes the spans of one command.
type tracing struct {
	tracer   trace.Tracer
	parent   propagation.MapCarrier // the trace of the runtime; may be invalid
	observer func(context.Context, delegate.Event) (context.Context, func(error))
	stages   delegate.Stages

	mu             sync.Mutex // guards what follows
	queued, inTurn time.Time  // the wait before the command; zero if there was none
}

// stage is a [delegate.Stages].
func (t *tracing) stage(ctx context.Context, s delegate.Stage, e delegate.Event) (context.Context, func(error)) {
	end := func(error) {}
	switch {
	case s == delegate.StageCommand:
		ctx, end = t.command(ctx, e)
	case s == delegate.StageQueue:
		end = t.queue(ctx, e)
	case trace.SpanContextFromContext(ctx).IsValid():
		ctx, end = t.start(ctx, string(s), e)
	}
	ctx, ended := t.stages.Begin(ctx, s, e)
	return ctx, func(err error) {
		ended(err)
		end(err)
	}
}

// queue notes a wait. The span of the command, which begins with the wait, is started when the
// command is, or when the wait has failed.
func (t *tracing) queue(ctx context.Context, e delegate.Event) (ended func(error)) {
	from := time.Now()
	return func(err error) {
		t.mu.Lock()
		t.queued, t.inTurn = from, time.Now()
		t.mu.Unlock()
		if err != nil {
			_, end := t.command(ctx, e)
			end(err)
		}
	}
}

// command starts the span of a command, with the one of the wait before it.
func (t *tracing) command(ctx context.Context, e delegate.Event) (context.Context, func(error)) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = propagation.TraceContext{}.Extract(ctx, t.parent)
	}
	t.mu.Lock()
	queued, inTurn := t.queued, t.inTurn
	t.queued = time.Time{}
	t.mu.Unlock()
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer)}
	if !queued.IsZero() {
		options = append(options, trace.WithTimestamp(queued))
	}
	ctx, end := t.start(ctx, "CNI "+string(e.Command), e, options...)
	if !queued.IsZero() {
		_, wait := t.tracer.Start(ctx, string(delegate.StageQueue), trace.WithTimestamp(queued))
		wait.End(trace.WithTimestamp(inTurn))
	}
	return ctx, end
}

// observe is the Observer of a [delegate.Invoker].
func (t *tracing) observe(ctx context.Context, e delegate.Event) (context.Context, func(error)) {
	end, ended := func(error) {}, func(error) {}
	if trace.SpanContextFromContext(ctx).IsValid() {
		ctx, end = t.start(ctx, string(e.Command)+" "+e.Plugin, e, trace.WithSpanKind(trace.SpanKindClient))
		carrier := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(ctx, carrier)
		env := []string{traceparent + "=" + carrier["traceparent"]}
		if state := carrier["tracestate"]; state != "" {
			env = append(env, tracestate+"="+state)
		}
		ctx = delegate.WithOptions(ctx, delegate.ProcessOptions{Env: env})
	}
	if t.observer != nil {
		ctx, ended = t.observer(ctx, e)
	}
	return ctx, func(err error) {
		ended(err)
		end(err)
	}
}

// start starts a span about e. The caller calls end with the outcome.
func (t *tracing) start(ctx context.Context, name string, e delegate.Event, options ...trace.SpanStartOption) (_ context.Context, end func(error)) {
	ctx, span := t.tracer.Start(ctx, text(name), append(options, trace.WithAttributes(texts(
		"cni.command", string(e.Command), "cni.plugin.type", e.Plugin, "cni.network.name", e.Network,
		"container.id", e.ContainerID, "network.interface.name", e.IfName)...))...)
	return ctx, func(err error) {
		if err != nil {
			code := status.Code(err)
			span.SetAttributes(attribute.Int64("cni.error.code", int64(code)), attribute.String("error.type", strconv.FormatUint(uint64(code), 10))) //nolint:gosec // a code of CNI
			span.SetStatus(codes.Error, text(status.Error(err).Error()))
		}
		span.End()
	}
}

// texts returns the attributes of pairs of names and values, without empty ones.
func texts(pairs ...string) (list []attribute.KeyValue) {
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" {
			list = append(list, attribute.String(pair[0], text(pair[1])))
		}
	}
	return list
}

// text returns at most maxText bytes of s as valid UTF-8: with anything else, an exporter
// drops all spans that it is about to send.
func text(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxText)], "") }
