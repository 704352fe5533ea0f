package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"regexp"
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
	"github.com/metacni/metacni/delegate/resident"
	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/internal/daemon"
	"github.com/metacni/metacni/netconf/autoconf"
)

// maxTypes limits how many plugin types have a label of their own. Types come from
// configurations, which may have any content.
const maxTypes = 32

// other is the label of everything without a label of its own.
const other = "other"

// metrics are the metrics of a daemon, in a registry of their own.
type metrics struct {
	registry *prometheus.Registry
	factory  promauto.Factory // of metrics in the registry

	requests         *prometheus.CounterVec // handler, code, method
	multus           *prometheus.CounterVec // the same with Multus's name, or nil
	duration         *prometheus.HistogramVec
	refused          prometheus.Counter
	delegates        *prometheus.CounterVec
	delegateDuration *prometheus.HistogramVec
	undone           prometheus.Counter
	residents        *prometheus.CounterVec // nil without residents
	swept            *prometheus.CounterVec
	left             *prometheus.GaugeVec // by the last sweep

	mu    sync.Mutex
	types []string // with a label of their own; guarded by mu
}

// newRegistry returns a registry with the metrics of the process, and its factory.
func newRegistry() (*prometheus.Registry, promauto.Factory) {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r, promauto.With(r)
}

// newMetrics returns the metrics of a daemon whose server has these loads.
func newMetrics(multusNames bool, loads func() map[string]thick.Load) *metrics {
	m := &metrics{}
	m.registry, m.factory = newRegistry()
	m.requests = m.counter("multinetd_requests_total", "Requests for operations.", "handler", "code", "method")
	m.duration = m.histogram("multinetd_operation_duration_seconds", "Time from the arrival of a request to its answer.", "command", "outcome")
	m.refused = m.counter("multinetd_peers_refused_total", "Requests of users that may not connect.").WithLabelValues()
	m.delegates = m.counter("multinetd_delegate_executions_total", "Executions of plugins.", "type", "command", "outcome")
	m.delegateDuration = m.histogram("multinetd_delegate_duration_seconds", "Duration of executions of plugins.", "type", "command")
	m.undone = m.counter("multinetd_delegate_undos_total", "DELs of plugins that undid an ADD.").WithLabelValues()
	m.swept = m.counter("multinetd_stale_attachments_tried_total", "Attempts of sweeps to remove a stale attachment.", "outcome")
	m.left = m.factory.NewGaugeVec(prometheus.GaugeOpts{
		Name: "multinetd_records_left", Help: "Stale and unreadable records that the last sweep has left.",
	}, []string{"state"})
	for _, lane := range []string{"add", "del", "status"} {
		labels := prometheus.Labels{"lane": lane}
		m.gauge("multinetd_operations_in_flight", "Running operations.", labels, func() float64 { return float64(loads()[lane].InFlight) })
		m.gauge("multinetd_operations_queued", "Operations waiting for their container or their turn.", labels, func() float64 { return float64(loads()[lane].Queued) })
	}
	if multusNames {
		m.multus = m.counter("multus_server_request_total", "Requests for operations.", "handler", "code", "method")
	}
	return m
}

func (m *metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	return m.factory.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func (m *metrics) histogram(name, help string, labels ...string) *prometheus.HistogramVec {
	seconds := []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
	return m.factory.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: seconds}, labels)
}

func (m *metrics) gauge(name, help string, labels prometheus.Labels, value func() float64) {
	m.factory.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, value)
}

// leftovers adds the metric of what is left of ADDs that never succeeded.
func (m *metrics) leftovers(count func() int) {
	m.gauge("multinet_leftovers", "Records with something left of an ADD that never succeeded.", nil, func() float64 { return float64(count()) })
}

// follow adds the metrics of the published network.
func (m *metrics) follow(state func() autoconf.State) {
	m.gauge("multinetd_network_published", "1 if the network is published and up to date, otherwise 0.", nil, func() float64 {
		if s := state(); s.Published != "" && s.Degraded == nil {
			return 1
		}
		return 0
	})
	m.factory.NewCounterFunc(prometheus.CounterOpts{
		Name: "multinetd_network_writes_total", Help: "Times that the network was written.",
	}, func() float64 { return float64(state().Written) })
	m.factory.NewCounterFunc(prometheus.CounterOpts{
		Name: "multinetd_network_restores_total", Help: "Times that the network was written because others had changed it.",
	}, func() float64 { return float64(state().Restored) })
}

// residentStates adds the metrics of resident plugins, which plugins lists.
func (m *metrics) residentStates(plugins func() []resident.Status) {
	m.residents = m.counter("multinetd_resident_calls_total", "Calls of resident plugins.", "type", "command", "outcome")
	for _, state := range []resident.State{resident.Joining, resident.Ready, resident.Gone, resident.Refused, resident.Skipped} {
		m.gauge("multinetd_resident_delegates", "Resident plugins by state.", prometheus.Labels{"state": string(state)}, func() (n float64) {
			for _, p := range plugins() {
				if p.State == state {
					n++
				}
			}
			return n
		})
	}
}

// resident counts a call of a resident plugin.
func (m *metrics) resident(plugin, command string, err error) {
	m.residents.WithLabelValues(m.typeLabel(plugin), commandLabel(command), failed(err)).Inc()
}

// handler serves the metrics as text.
func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
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

// sweep counts one pass.
func (m *metrics) sweep(swept lifecycle.Sweep) {
	m.swept.WithLabelValues("ok").Add(float64(swept.Removed))
	m.swept.WithLabelValues("failed").Add(float64(swept.Failed))
	m.left.WithLabelValues("stale").Set(float64(swept.Failed + swept.Waiting))
	m.left.WithLabelValues("unreadable").Set(float64(swept.Unreadable))
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

// typeLabel returns the label of a plugin type: the type itself for the first
// maxTypes valid types, and other for the rest.
func (m *metrics) typeLabel(plugin string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case slices.Contains(m.types, plugin):
		return plugin
	case len(m.types) == maxTypes, !isType(plugin):
		return other
	}
	m.types = append(m.types, plugin)
	return plugin
}

func isType(plugin string) bool {
	ok, _ := regexp.MatchString(`^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$`, plugin) // the pattern is valid
	return ok
}

// serveMetrics serves pages, which have the metrics, over TCP until stop is called. While
// the address is in use, by the previous daemon that has not ended yet, it retries in the
// background.
func serveMetrics(ctx context.Context, address string, pages http.Handler, log *slog.Logger) (stop func(), _ error) {
	l, err := listenMetrics(ctx, address)
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		log.LogAttrs(ctx, slog.LevelWarn, "metrics address in use, retrying", slog.Any("error", err))
	case err != nil:
		return nil, err
	}
	s := metricsServer(pages, log)
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for errors.Is(err, unix.EADDRINUSE) && daemon.Pause(ctx, metricsRetry) {
			l, err = listenMetrics(ctx, address)
		}
		if err == nil {
			log.LogAttrs(ctx, slog.LevelInfo, "serving metrics", slog.String("address", l.Addr().String()))
			err = s.Serve(netutil.LimitListener(l, metricsConnections))
		}
		if ctx.Err() == nil {
			log.LogAttrs(ctx, slog.LevelError, "serving metrics failed", slog.Any("error", err))
		}
	}()
	return func() { cancel(); _ = s.Close(); <-ended }, nil
}

// The limits of an HTTP exchange over TCP, where anybody may connect.
const (
	metricsConnections    = 512              // more wait until one is closed
	metricsReadTimeout    = 10 * time.Second // of a request, and of the wait for the first
	metricsWriteTimeout   = 10 * time.Second // for a client to take its answer
	metricsIdleTimeout    = 2 * time.Minute  // longer than scrapers pause
	metricsMaxHeaderBytes = 16 << 10
	metricsRetry          = 100 * time.Millisecond // while the address is in use
)

// metricsServer returns a server of h with limits for slow clients. It logs errors.
func metricsServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: h, ReadTimeout: metricsReadTimeout, WriteTimeout: metricsWriteTimeout, IdleTimeout: metricsIdleTimeout,
		MaxHeaderBytes: metricsMaxHeaderBytes, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

func listenMetrics(ctx context.Context, address string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return l, nil
}
