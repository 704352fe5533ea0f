package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/internal/program"
	"github.com/metacni/metacni/examples/multinet/sample"
)

// maxTypes limits how many plugin types have a label of their own. Types come from
// configurations, which may have any content.
const maxTypes = 32

// other is the label of everything without a label of its own.
const other = "other"

// metrics are the metrics of a daemon, in a registry of their own.
type metrics struct {
	registry

	requests         *prometheus.CounterVec // handler, code, method
	multus           *prometheus.CounterVec // the same with Multus's name, or nil
	duration         *prometheus.HistogramVec
	refused          prometheus.Counter
	delegates        *prometheus.CounterVec
	delegateDuration *prometheus.HistogramVec
	stageDuration    *prometheus.HistogramVec
	undone           prometheus.Counter
	residents        *prometheus.CounterVec
	swept            *prometheus.CounterVec
	left             *prometheus.GaugeVec // by the last sweep
	unknown          prometheus.Gauge     // likewise

	mu    sync.Mutex
	types []string // with a label of their own; guarded by mu
}

// A registry has metrics, those of the process first.
type registry struct{ *prometheus.Registry }

func newRegistry() registry {
	r := registry{prometheus.NewRegistry()}
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// handler serves the metrics as text.
func (r registry) handler() http.Handler { return promhttp.HandlerFor(r, promhttp.HandlerOpts{}) }

func (r registry) counter(name, help string, labels ...string) *prometheus.CounterVec {
	return promauto.With(r).NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func (r registry) histogram(seconds []float64, name, help string, labels ...string) *prometheus.HistogramVec {
	return promauto.With(r).NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: seconds}, labels)
}

// newMetrics returns the metrics of a daemon, and those that each of more has at a scrape.
func newMetrics(multusNames bool, more ...sample.Collector) *metrics {
	r := newRegistry()
	for _, c := range more {
		r.MustRegister(c)
	}
	seconds := []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
	m := &metrics{
		registry:         r,
		requests:         r.counter("multinetd_requests_total", "Requests for operations.", "handler", "code", "method"),
		duration:         r.histogram(seconds, "multinetd_operation_duration_seconds", "Time from the arrival of a request to its answer.", "command", "outcome"),
		refused:          r.counter("multinetd_peers_refused_total", "Requests of users that may not connect.").WithLabelValues(),
		delegates:        r.counter("multinetd_delegate_executions_total", "Executions of plugins.", "type", "command", "outcome"),
		delegateDuration: r.histogram(seconds, "multinetd_delegate_duration_seconds", "Duration of executions of plugins.", "type", "command"),
		stageDuration: r.histogram(slices.Concat([]float64{.0001, .0005, .001, .0025}, seconds), "multinetd_stage_duration_seconds",
			"Time in the queue, in the wait for the lock of a container, and in a write of its record.", "stage", "command"),
		undone:    r.counter("multinetd_delegate_undos_total", "DELs of plugins that undid an ADD.").WithLabelValues(),
		residents: r.counter("multinetd_resident_calls_total", "Calls of resident plugins.", "type", "command", "outcome"),
		swept:     r.counter("multinetd_stale_attachments_tried_total", "Attempts of sweeps to remove a stale attachment.", "outcome"),
		left: promauto.With(r).NewGaugeVec(prometheus.GaugeOpts{
			Name: "multinetd_records_left", Help: "Stale and unreadable records that the last sweep has left.",
		}, []string{"state"}),
		unknown: promauto.With(r).NewGauge(prometheus.GaugeOpts{
			Name: "multinetd_attachments_unknown", Help: "Attachments of which the last sweep did not know whether their containers live.",
		}),
	}
	if multusNames {
		m.multus = r.counter("multus_server_request_total", "Requests for operations.", "handler", "code", "method")
	}
	return m
}

// resident counts a call of a resident plugin.
func (m *metrics) resident(plugin, command string, err error) {
	m.residents.WithLabelValues(m.typeLabel(plugin), commandLabel(command), failed(err)).Inc()
}

// request counts a request.
func (m *metrics) request(e thick.Event) {
	handler := other
	if e.Path == wire.PathCNI || e.Path == wire.PathAttach {
		handler = e.Path
	}
	if e.Status == http.StatusForbidden {
		m.refused.Inc()
	}
	command := commandLabel(e.Command)
	m.duration.WithLabelValues(command, outcome(e.Status)).Observe(e.Duration.Seconds())
	if e.Replayed {
		return // there was no request
	}
	labels := []string{handler, strconv.Itoa(e.Status), "post"}
	m.requests.WithLabelValues(labels...).Inc()
	if m.multus != nil {
		m.multus.WithLabelValues(labels...).Inc()
	}
}

// delegate starts the clock of an invocation of a plugin. The function that it
// returns counts the invocation when it has ended.
func (m *metrics) delegate(e delegate.Event) func(error) {
	start := time.Now()
	return func(err error) {
		plugin, command := m.typeLabel(e.Plugin), commandLabel(string(e.Command))
		m.delegates.WithLabelValues(plugin, command, failed(err)).Inc()
		m.delegateDuration.WithLabelValues(plugin, command).Observe(time.Since(start).Seconds())
	}
}

// stage starts the clock of a stage. The function that it returns stops it.
func (m *metrics) stage(s delegate.Stage, e delegate.Event) func(error) {
	if s != delegate.StageQueue && s != delegate.StageLock && s != delegate.StageRecord {
		return func(error) {} // others count them
	}
	start := time.Now()
	return func(error) {
		m.stageDuration.WithLabelValues(string(s), commandLabel(string(e.Command))).Observe(time.Since(start).Seconds())
	}
}

// sweep counts one pass.
func (m *metrics) sweep(swept lifecycle.SweepStats) {
	m.swept.WithLabelValues("ok").Add(float64(swept.Removed))
	m.swept.WithLabelValues("failed").Add(float64(swept.Failed))
	m.left.WithLabelValues("stale").Set(float64(swept.Failed + swept.Waiting))
	m.left.WithLabelValues("unreadable").Set(float64(swept.Unreadable))
	m.unknown.Set(float64(swept.Unknown))
}

// failed returns the outcome of a call that has returned err.
func failed(err error) string {
	if err != nil {
		return "failed"
	}
	return "ok"
}

// outcome returns the outcome of an operation with this HTTP status.
func outcome(status int) string {
	switch {
	case status == http.StatusOK:
		return "ok"
	case status == http.StatusServiceUnavailable:
		return "busy"
	case status >= 400 && status < 499:
		return "refused"
	}
	return "failed" // or the client had gone
}

func commandLabel(command string) string {
	if slices.Contains([]string{"ADD", "CHECK", "DEL", "GC", "STATUS"}, command) {
		return command
	}
	return other
}

// typeLabel returns the label of a plugin type: the type itself for the first maxTypes types,
// and other for the rest.
func (m *metrics) typeLabel(plugin string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case slices.Contains(m.types, plugin):
	case len(m.types) == maxTypes:
		return other
	default:
		m.types = append(m.types, plugin)
	}
	return plugin
}

// serveMetrics serves pages, which have the metrics, over TCP until stop is called. While
// the address is in use, by the previous daemon that has not ended yet, it retries in the
// background.
func serveMetrics(ctx context.Context, address string, pages http.Handler, log *slog.Logger) (stop func(), _ error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	listen := func() (net.Listener, error) { return (&net.ListenConfig{}).Listen(ctx, "tcp", address) }
	l, err := listen()
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		log.LogAttrs(ctx, slog.LevelWarn, "metrics address in use, retrying", slog.Any("error", err))
	case err != nil:
		cancel()
		return nil, fmt.Errorf("metrics: %w", err)
	}
	s := metricsServer(pages, log)
	var serving sync.WaitGroup
	serving.Go(func() {
		for errors.Is(err, unix.EADDRINUSE) && program.Pause(ctx, metricsRetry) {
			l, err = listen()
		}
		if err == nil {
			log.LogAttrs(ctx, slog.LevelInfo, "serving metrics", slog.String("address", l.Addr().String()))
			err = s.Serve(netutil.LimitListener(l, metricsConnections))
		}
		if ctx.Err() == nil {
			log.LogAttrs(ctx, slog.LevelError, "serving metrics failed", slog.Any("error", err))
		}
	})
	return func() { cancel(); _ = s.Close(); serving.Wait() }, nil
}

const (
	metricsConnections  = 32                     // over TCP, where anybody may connect; more are not accepted until one is closed
	metricsRetry        = 100 * time.Millisecond // while the address is in use
	metricsWriteTimeout = 10 * time.Second       // for a client to take its answer
)

// metricsServer returns a server of h with limits for slow clients. A connection serves one request.
// It logs errors.
func metricsServer(h http.Handler, log *slog.Logger) *http.Server {
	s := &http.Server{
		Handler:        h,
		ReadTimeout:    10 * time.Second, // of a request
		WriteTimeout:   metricsWriteTimeout,
		MaxHeaderBytes: 16 << 10,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	s.SetKeepAlivesEnabled(false)
	return s
}
