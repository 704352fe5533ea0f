package cluster

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/netconf/nad"
)

// Describe sends nothing: the metrics depend on the resources that are watched.
func (c *Cluster) Describe(chan<- *prometheus.Desc) {}

// Collect sends the metrics about Kubernetes. No label is the name of a pod or of a
// definition.
func (c *Cluster) Collect(ch chan<- prometheus.Metric) {
	c.requests.Collect(ch)
	if !c.open.Load() {
		return
	}
	for _, r := range c.view.Resources() {
		gauge(ch, "view_synced", "1 if everything was read once, otherwise 0.", bit(r.Synced), "resource", r.Name)
		gauge(ch, "view_age_seconds", "Time since the API server was last heard of.", r.Age.Seconds(), "resource", r.Name)
		gauge(ch, "view_objects", "Objects that are known.", float64(r.Objects), "resource", r.Name)
		var waits string
		switch r.Name {
		case definitions:
			waits = "nad_waits_total"
			gauge(ch, "nads_invalid", "Definitions that no pod can use.", c.invalid())
		case "pods":
			waits = "pod_waits_total"
		default: // nobody waits for a single one
			continue
		}
		for outcome, n := range map[string]uint64{"watch": r.WaitsWatch, "live": r.WaitsLive, "none": r.WaitsNone} {
			count(ch, waits, "Look-ups that had to wait: the watch or one request has brought the object, or none.", n, "outcome", outcome)
		}
	}
	count(ch, "devices_exhausted_total", "ADDs, and networks of running pods, that failed because the pod does not have the devices that its networks need.", c.exhausted.Load())
	w := c.writer.Stats()
	for outcome, n := range map[string]uint64{"written": w.Written, "gone": w.Gone, "refused": w.Refused, "failed": w.Failed} {
		count(ch, "status_writes_total", "Requests that were to write the status of a pod.", n, "outcome", outcome)
	}
	count(ch, "status_overwritten_total", "Statuses that somebody else has changed.", w.Overwritten)
	gauge(ch, "status_pending", "Pods whose status is not known to be written.", float64(w.Pending))
	gauge(ch, "status_lag_seconds", "Time for which the oldest of the pending statuses waits.", w.Lag.Seconds())
	if c.driver != nil {
		c.collectClaims(ch)
	}
	if c.follow != nil {
		gauge(ch, "pods_differing", "Pods that are not attached to exactly what they select.", float64(c.follow.differing()))
		c.follow.changes.Collect(ch)
	}
	sent, dropped := c.events.Stats()
	for outcome, n := range map[string]uint64{"sent": sent, "dropped": dropped} {
		count(ch, "events_total", "Events.", n, "outcome", outcome)
	}
}

// collectClaims sends the metrics about ResourceClaims.
func (c *Cluster) collectClaims(ch chan<- prometheus.Metric) {
	stats := c.driver.Stats()
	gauge(ch, "claims_served", "1 if the kubelet can have ResourceClaims prepared, otherwise 0.", bit(c.driver.Err() == nil))
	gauge(ch, "claims_prepared", "ResourceClaims that are prepared.", float64(stats.Prepared))
	gauge(ch, "claim_status_pending", "ResourceClaims whose status is not known to be written.", float64(stats.Pending))
	for outcome, n := range map[string]uint64{"written": stats.Written, "refused": stats.Refused, "failed": stats.Failed} {
		count(ch, "claim_status_writes_total", "Attempts to write the status of a ResourceClaim.", n, "outcome", outcome)
	}
	gauge(ch, "claim_devices", "Networks that the node offers as devices, or has withdrawn.", float64(stats.Offered), "state", "published")
	gauge(ch, "claim_devices", "Networks that the node offers as devices, or has withdrawn.", float64(stats.Withdrawn), "state", "withdrawn")
}

// invalid is the number of definitions that no pod can use, whatever the node has.
func (c *Cluster) invalid() (n float64) {
	for d, err := range c.view.Definitions() {
		if err == nil && d.Config != "" { // without it is a file of the node
			_, err = d.Network(nad.Rules{})
		}
		if err != nil {
			n++
		}
	}
	return n
}

// definitions is the name of the resource of NetworkAttachmentDefinitions.
const definitions = "network-attachment-definitions"

// newChanges returns the counter of changes of running pods.
func newChanges() *prometheus.CounterVec {
	changes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: prefix + "reconciles_total", Help: "Networks that were to be attached to a running pod, or detached from it, as the pod selects them.",
	}, []string{"action", "outcome"})
	for _, action := range []string{actionAttach, actionDetach} {
		for _, outcome := range []string{outcomeOK, outcomeFailed} {
			changes.WithLabelValues(action, outcome)
		}
	}
	return changes
}

// newRequests returns the counter of requests to the API server.
func newRequests() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: prefix + "api_requests_total", Help: "Requests to the Kubernetes API. Code 0 is a request without an answer.",
	}, []string{"verb", "resource", "code"})
}

// count counts a request to the API server.
func (c *Cluster) count(r kube.Request) {
	c.requests.WithLabelValues(r.Verb, r.Resource, strconv.Itoa(r.Code)).Inc()
}

const prefix = "multinetd_"

func gauge(ch chan<- prometheus.Metric, name, help string, value float64, labels ...string) {
	send(ch, prometheus.GaugeValue, name, help, value, labels)
}

func count(ch chan<- prometheus.Metric, name, help string, value uint64, labels ...string) {
	send(ch, prometheus.CounterValue, name, help, float64(value), labels)
}

// send sends a metric. labels are its label, if it has one, and the value of that.
func send(ch chan<- prometheus.Metric, kind prometheus.ValueType, name, help string, value float64, labels []string) {
	names, values := labels[:len(labels)/2], labels[len(labels)/2:]
	ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(prefix+name, help, names, nil), kind, value, values...)
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
