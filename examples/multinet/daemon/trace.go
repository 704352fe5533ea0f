package daemon

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"golang.org/x/time/rate"

	"github.com/metacni/metacni/examples/internal/program"
)

const (
	// flushTimeout is how long the daemon waits at its end for the collector of traces.
	flushTimeout = 2 * time.Second

	// untracedInterval is the time between two log lines about a collector that does not answer.
	untracedInterval = 10 * time.Minute
)

// startTraces traces commands from now on if the standard variables of OpenTelemetry in environ
// say so. It does not wait for the collector. If a variable is wrong it logs why nothing is traced.
// The packages of OpenTelemetry read further variables from the environment of the process. The
// caller calls end after the last command.
func (d *service) startTraces(ctx context.Context, environ []string) (end func()) {
	provider, err := newProvider(ctx, d.server.Version, d.log, func(name string) string { return strings.TrimSpace(program.Variable(environ, name)) })
	if err != nil {
		d.log.LogAttrs(ctx, slog.LevelWarn, "commands are not traced", slog.Any("error", err))
	}
	if provider == nil {
		return func() {}
	}
	d.traces = provider
	d.log.LogAttrs(ctx, slog.LevelInfo, "commands are traced")
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			d.log.LogAttrs(ctx, slog.LevelWarn, "the last spans were not sent", slog.Any("error", err))
		}
	}
}

// newProvider returns what makes spans, and sends them to the collector that get, which returns
// variables, names. It returns nil if it names none.
func newProvider(ctx context.Context, version string, log *slog.Logger, get func(name string) string) (*sdk.TracerProvider, error) {
	to, err := newExporter(ctx, get)
	if to == nil || err != nil {
		return nil, err
	}
	about, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "multinetd"), attribute.String("service.version", version)),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return sdk.NewTracerProvider(sdk.WithResource(about), sdk.WithBatcher(&logged{SpanExporter: to, log: log, rate: rate.Sometimes{Interval: untracedInterval}})), nil
}

// newExporter returns what sends spans to the collector that get names, or nil if it names none.
func newExporter(ctx context.Context, get func(name string) string) (sdk.SpanExporter, error) { //nolint:ireturn // one of two
	exporter := get("OTEL_TRACES_EXPORTER")
	switch {
	case strings.EqualFold(get("OTEL_SDK_DISABLED"), "true"), exporter == "none":
		return nil, nil
	case exporter == "" && get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" && get("OTEL_EXPORTER_OTLP_ENDPOINT") == "":
		return nil, nil
	case exporter != "" && exporter != "otlp":
		return nil, fmt.Errorf("OTEL_TRACES_EXPORTER: %q is unknown: want otlp or none", exporter)
	}
	switch protocol := cmp.Or(get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), get("OTEL_EXPORTER_OTLP_PROTOCOL")); protocol {
	case "", "http/protobuf":
		return otlptracehttp.New(ctx)
	case "grpc":
		return otlptracegrpc.New(ctx)
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL: %q is unknown: want http/protobuf or grpc", protocol)
	}
}

// A logged is an exporter whose errors are logged, now and then.
type logged struct {
	sdk.SpanExporter

	log  *slog.Logger
	rate rate.Sometimes
}

// ExportSpans never fails: a batch that cannot be sent is dropped.
func (l *logged) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	if err := l.SpanExporter.ExportSpans(ctx, spans); err != nil {
		l.rate.Do(func() {
			l.log.LogAttrs(ctx, slog.LevelWarn, "spans cannot be sent, and are dropped", slog.Any("error", err))
		})
	}
	return nil
}
