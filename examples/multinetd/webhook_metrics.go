package main

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	admissionv1 "k8s.io/api/admission/v1"

	"github.com/metacni/metacni/delegate/kube/webhook"
)

// webhookMetrics are the metrics of a webhook, in a registry of their own.
type webhookMetrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// newWebhookMetrics returns the metrics of a webhook whose certificate expires then.
func newWebhookMetrics(expires func() time.Time) *webhookMetrics {
	registry, factory := newRegistry()
	factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "multinetd_webhook_certificate_expiration_timestamp_seconds", Help: "When the certificate expires, in seconds since 1970.",
	}, func() float64 { return float64(expires().Unix()) })
	return &webhookMetrics{
		registry: registry,
		requests: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "multinetd_webhook_requests_total", Help: "Requests for reviews.",
		}, []string{"resource", "operation", "outcome"}),
		duration: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "multinetd_webhook_duration_seconds", Help: "Time from the arrival of a request to its answer.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 3, 10},
		}, []string{"resource"}),
	}
}

// handler serves the metrics as text.
func (m *webhookMetrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// count counts a request. Anybody may send one, with any content: it is counted by what
// the webhook knows.
func (m *webhookMetrics) count(e webhook.Event) {
	resource, operation := other, other
	if e.Request != nil {
		switch e.Request.Kind.Kind {
		case "Pod":
			resource = "pods"
		case "NetworkAttachmentDefinition":
			resource = "network-attachment-definitions"
		}
		switch e.Request.Operation {
		case admissionv1.Create, admissionv1.Update:
			operation = string(e.Request.Operation)
		case admissionv1.Delete, admissionv1.Connect:
		}
	}
	m.requests.WithLabelValues(resource, operation, e.Outcome).Inc()
	m.duration.WithLabelValues(resource).Observe(e.Duration.Seconds())
}
