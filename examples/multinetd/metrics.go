package main

import (
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/resident"
	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/delegate/thick/wire"
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

	requests         *prometheus.CounterVec // handler, code, method
	multus           *prometheus.CounterVec // the same with Multus's name, or nil
	duration         *prometheus.HistogramVec
	refused          prometheus.Counter
	delegates        *prometheus.CounterVec
	delegateDuration *prometheus.HistogramVec
	undone           prometheus.Counter
	residents        *prometheus.CounterVec // nil without residents
	sweeps           sweeps

	mu    sync.Mutex
	types []string // with a label of their own; guarded by mu
}

// newMetrics returns the metrics of a daemon whose server has these stats.
func newMetrics(multusNames bool, stats func() thick.Stats) *metrics {
	seconds := []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
	requestLabels := []string{"handler", "code", "method"}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "multinetd_requests_total", Help: "Requests for operations.",
		}, requestLabels),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "multinetd_operation_duration_seconds", Help: "Time from the arrival of a request to its answer.", Buckets: seconds,
		}, []string{"command", "outcome"}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "multinetd_peers_refused_total", Help: "Requests of users that may not connect.",
		}),
		delegates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "multinetd_delegate_executions_total", Help: "Executions of plugins.",
		}, []string{"type", "command", "outcome"}),
		delegateDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "multinetd_delegate_duration_seconds", Help: "Duration of executions of plugins.", Buckets: seconds,
		}, []string{"type", "command"}),
		undone: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "multinetd_delegate_undos_total", Help: "DELs of plugins that undid an ADD.",
		}),
	}
	m.registry.MustRegister(m.requests, m.duration, m.refused, m.delegates, m.delegateDuration, m.undone, load(stats),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.sweeps = newSweeps(m.registry)
	if multusNames {
		m.multus = prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "multus_server_request_total", Help: "Requests for operations.",
		}, requestLabels)
		m.registry.MustRegister(m.multus)
	}
	return m
}

// leftovers adds the metric of what is left of ADDs that never succeeded.
func (m *metrics) leftovers(count func() int) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "multinet_leftovers", Help: "Records with something left of an ADD that never succeeded.",
	}, func() float64 { return float64(count()) }))
}

// follow adds the metrics of the published network.
func (m *metrics) follow(state func() autoconf.State) {
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "multinetd_network_published", Help: "1 if the network is published and up to date, otherwise 0.",
		}, func() float64 {
			if s := state(); s.Published != "" && s.Degraded == nil {
				return 1
			}
			return 0
		}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "multinetd_network_writes_total", Help: "Times that the network was written.",
		}, func() float64 { return float64(state().Written) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "multinetd_network_restores_total", Help: "Times that the network was written because others had changed it.",
		}, func() float64 { return float64(state().Restored) }),
	)
}

// residentStates adds the metrics of resident plugins, which plugins lists.
func (m *metrics) residentStates(plugins func() []resident.Status) {
	m.residents = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "multinetd_resident_calls_total", Help: "Calls of resident plugins.",
	}, []string{"type", "command", "outcome"})
	m.registry.MustRegister(m.residents, states(plugins))
}

// resident counts a call of a resident plugin.
func (m *metrics) resident(plugin, command string, err error) {
	how := "ok"
	if err != nil {
		how = "failed"
	}
	m.residents.WithLabelValues(m.typeLabel(plugin), commandLabel(command), how).Inc()
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
		plugin, command, how := m.typeLabel(e.Plugin), commandLabel(string(e.Command)), "ok"
		if err != nil {
			how = "failed"
		}
		m.delegates.WithLabelValues(plugin, command, how).Inc()
		m.delegateDuration.WithLabelValues(plugin, command).Observe(time.Since(start).Seconds())
	}
}

// sweeps are the metrics of sweeps.
type sweeps struct {
	tries *prometheus.CounterVec
	left  *prometheus.GaugeVec
}

func newSweeps(registry *prometheus.Registry) sweeps {
	s := sweeps{
		tries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "multinetd_stale_attachments_tried_total", Help: "Attempts of sweeps to remove a stale attachment.",
		}, []string{"outcome"}),
		left: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "multinetd_records_left", Help: "Stale and unreadable records that the last sweep has left.",
		}, []string{"state"}),
	}
	registry.MustRegister(s.tries, s.left)
	return s
}

// sweep counts one pass.
func (m *metrics) sweep(swept lifecycle.Sweep) {
	m.sweeps.tries.WithLabelValues("ok").Add(float64(swept.Removed))
	m.sweeps.tries.WithLabelValues("failed").Add(float64(swept.Failed))
	m.sweeps.left.WithLabelValues("stale").Set(float64(swept.Failed + swept.Waiting))
	m.sweeps.left.WithLabelValues("unreadable").Set(float64(swept.Unreadable))
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

// load collects how many operations run and wait.
type load func() thick.Stats

func (load) inFlight() *prometheus.Desc {
	return prometheus.NewDesc("multinetd_operations_in_flight", "Running operations.", []string{"lane"}, nil)
}

func (load) queued() *prometheus.Desc {
	return prometheus.NewDesc("multinetd_operations_queued", "Operations waiting for their container or their turn.", []string{"lane"}, nil)
}

// Describe sends what Collect collects.
func (l load) Describe(ch chan<- *prometheus.Desc) { ch <- l.inFlight(); ch <- l.queued() }

// Collect sends the load of each lane.
func (l load) Collect(ch chan<- prometheus.Metric) {
	now := l()
	for lane, on := range map[string]thick.Load{"add": now.Add, "del": now.Del, "status": now.Status} {
		ch <- prometheus.MustNewConstMetric(l.inFlight(), prometheus.GaugeValue, float64(on.InFlight), lane)
		ch <- prometheus.MustNewConstMetric(l.queued(), prometheus.GaugeValue, float64(on.Queued), lane)
	}
}

// states collects how many resident plugins are in each state.
type states func() []resident.Status

func (states) delegates() *prometheus.Desc {
	return prometheus.NewDesc("multinetd_resident_delegates", "Resident plugins by state.", []string{"state"}, nil)
}

// Describe sends what Collect collects.
func (s states) Describe(ch chan<- *prometheus.Desc) { ch <- s.delegates() }

// Collect sends the number for each state.
func (s states) Collect(ch chan<- prometheus.Metric) {
	in := map[resident.State]int{resident.Joining: 0, resident.Ready: 0, resident.Gone: 0, resident.Refused: 0, resident.Skipped: 0}
	for _, p := range s() {
		in[p.State]++
	}
	for state, n := range in {
		ch <- prometheus.MustNewConstMetric(s.delegates(), prometheus.GaugeValue, float64(n), string(state))
	}
}
