// Package sample makes metrics whose values are those at the time of a scrape.
package sample

import "github.com/prometheus/client_golang/prometheus"

// A Collector sends its metrics at each scrape. It need not know them before.
type Collector func(Scrape)

// Describe sends nothing.
func (Collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends the metrics.
func (c Collector) Collect(ch chan<- prometheus.Metric) { c(Scrape(ch)) }

// A Scrape takes metrics. A metric has at most one label.
type Scrape chan<- prometheus.Metric

// Gauge sends a gauge. label is the name of its label, and the value of that.
func (s Scrape) Gauge(name, help string, value float64, label ...string) {
	s.send(prometheus.GaugeValue, name, help, value, label)
}

// Count sends a counter without a label.
func (s Scrape) Count(name, help string, value uint64) {
	s.send(prometheus.CounterValue, name, help, float64(value), nil)
}

// Counts sends counters of the same name, by the value of their label.
func (s Scrape) Counts(name, help, label string, values map[string]uint64) {
	for of, value := range values {
		s.send(prometheus.CounterValue, name, help, float64(value), []string{label, of})
	}
}

func (s Scrape) send(kind prometheus.ValueType, name, help string, value float64, label []string) {
	names, values := label[:len(label)/2], label[len(label)/2:]
	s <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), kind, value, values...)
}

// Bit returns 1 if b is true, and otherwise 0.
func Bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
