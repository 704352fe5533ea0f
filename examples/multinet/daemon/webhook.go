package daemon

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	admissionv1 "k8s.io/api/admission/v1"

	"github.com/metacni/metacni/delegate/kube/webhook"
	"github.com/metacni/metacni/examples/multinet/help"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
)

// A webhookConfig is the command line of the webhook.
type webhookConfig struct {
	config // of the daemons, from their file

	Address, Cert, Key string

	// MetricsAddress of the webhook. In the file it is that of the daemons.
	MetricsAddress string
}

// runWebhook serves the admission webhook until ctx ends.
func runWebhook(ctx context.Context, args []string, defaultFile string, stdout, stderr io.Writer) error {
	conf, err := readWebhookConfig(args, defaultFile, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	log := conf.logger(stderr)
	reviewer, confErr := multinet.NewReviewer(conf.multinet())
	cert, certErr := webhook.LoadCertificate(conf.Cert, conf.Key, log)
	if err := cmp.Or(confErr, certErr); err != nil {
		return err
	}
	metrics := newWebhookMetrics(cert.Expires)
	handler := webhook.Handler{Definition: reviewer.Definition, Pod: reviewer.Pod, Observer: metrics.count, Logger: log}
	if conf.MetricsAddress != "" {
		pages := http.NewServeMux()
		pages.Handle("GET /metrics", metrics.handler())
		stop, err := serveMetrics(ctx, conf.MetricsAddress, pages, log)
		if err != nil {
			return err
		}
		defer stop()
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", conf.Address)
	if err != nil {
		return err
	}
	log.LogAttrs(ctx, slog.LevelInfo, "listening", slog.String("address", l.Addr().String()))
	return webhook.Serve(ctx, l, handler, cert, log)
}

// readWebhookConfig reads the command line and the file of the daemons. Without --config it
// reads defaultFile, which may be missing. For --help it writes to out and fails with
// [flag.ErrHelp].
func readWebhookConfig(args []string, defaultFile string, out io.Writer) (*webhookConfig, error) {
	c := &webhookConfig{config: *newConfig(), Address: ":8443"}
	flags := flag.NewFlagSet("multinetd "+webhookCommand, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&c.file, "config", c.file, "configuration `file` of the daemons")
	flags.StringVar(&c.Address, "address", c.Address, "`address` to serve at")
	flags.StringVar(&c.MetricsAddress, "metrics-address", c.MetricsAddress, "`address` of metrics, over HTTP without TLS")
	flags.StringVar(&c.Cert, "cert", c.Cert, "`file` of the certificate in PEM, which may change")
	flags.StringVar(&c.Key, "key", c.Key, "`file` of its key")
	flags.Usage = func() {
		fmt.Fprintf(flags.Output(), "usage: multinetd %s --cert FILE --key FILE [FLAGS]\nan admission webhook for definitions and selections\n", webhookCommand)
		help.Flags(flags.Output(), flags)
		fmt.Fprintf(flags.Output(), "example: multinetd %s --cert tls.crt --key tls.key\n", webhookCommand)
	}
	if err := parse(flags, args, out); err != nil {
		return nil, err
	}
	if c.Cert == "" || c.Key == "" {
		return nil, errors.New("a certificate is needed: --cert and --key")
	}
	return c, c.readFile(defaultFile)
}

// webhookMetrics are the metrics of a webhook, in a registry of their own.
type webhookMetrics struct {
	registry
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// newWebhookMetrics returns the metrics of a webhook whose certificate expires then.
func newWebhookMetrics(expires func() time.Time) *webhookMetrics {
	r := newRegistry()
	promauto.With(r).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "multinetd_webhook_certificate_expiration_timestamp_seconds", Help: "When the certificate expires, in seconds since 1970.",
	}, func() float64 { return float64(expires().Unix()) })
	return &webhookMetrics{
		registry: r,
		requests: r.counter("multinetd_webhook_requests_total", "Requests for reviews.", "resource", "operation", "outcome"),
		duration: r.histogram([]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 3, 10},
			"multinetd_webhook_duration_seconds", "Time from the arrival of a request to its answer.", "resource"),
	}
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
