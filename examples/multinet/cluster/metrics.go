package cluster

import (
	"strconv"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/examples/multinet/sample"
	"github.com/metacni/metacni/netconf/nad"
)

// Sample sends the metrics about Kubernetes. No label is the name of a pod or of a
// definition.
func (c *Cluster) Sample(to sample.Scrape) {
	c.requests.Collect(to)
	if !c.open.Load() {
		return
	}
	for _, r := range c.view.Resources() {
		to.Gauge("multinetd_view_synced", "1 if everything was read once, otherwise 0.", sample.Bit(r.Synced), "resource", r.Name)
		to.Gauge("multinetd_view_age_seconds", "Time since the API server was last heard of.", r.Age.Seconds(), "resource", r.Name)
		to.Gauge("multinetd_view_objects", "Objects that are known.", float64(r.Objects), "resource", r.Name)
		var waits string
		switch r.Name {
		case definitions:
			waits = "multinetd_nad_waits_total"
			to.Gauge("multinetd_nads_invalid", "Definitions that no pod can use.", c.invalid())
		case "pods":
			waits = "multinetd_pod_waits_total"
		default: // nobody waits for a single one
			continue
		}
		to.Counts(waits, "Look-ups that had to wait: the watch or one request has brought the object, or none.", "outcome", map[string]uint64{"watch": r.WaitsWatch, "live": r.WaitsLive, "none": r.WaitsNone})
	}
	to.Count("multinetd_devices_exhausted_total", "ADDs, and networks of running pods, that failed because the pod does not have the devices that its networks need.", c.exhausted.Load())
	w := c.writer.Stats()
	to.Counts("multinetd_status_writes_total", "Requests that were to write the status of a pod.", "outcome", map[string]uint64{"written": w.Written, "gone": w.Gone, "refused": w.Refused, "failed": w.Failed})
	to.Count("multinetd_status_overwritten_total", "Statuses that somebody else has changed.", w.Overwritten)
	to.Gauge("multinetd_status_pending", "Pods whose status is not known to be written.", float64(w.Pending))
	to.Gauge("multinetd_status_lag_seconds", "Time for which the oldest of the pending statuses waits.", w.Lag.Seconds())
	if c.driver != nil {
		c.sampleClaims(to)
	}
	if c.follow != nil {
		to.Gauge("multinetd_pods_differing", "Pods that are not attached to exactly what they select.", float64(c.follow.differing()))
		c.follow.changes.Collect(to)
	}
	sent, dropped := c.events.Stats()
	to.Counts("multinetd_events_total", "Events.", "outcome", map[string]uint64{"sent": sent, "dropped": dropped})
}

// sampleClaims sends the metrics about ResourceClaims.
func (c *Cluster) sampleClaims(to sample.Scrape) {
	stats := c.driver.Stats()
	to.Gauge("multinetd_claims_served", "1 if the kubelet can have ResourceClaims prepared, otherwise 0.", sample.Bit(c.driver.Err() == nil))
	to.Gauge("multinetd_claims_prepared", "ResourceClaims that are prepared.", float64(stats.Prepared))
	to.Gauge("multinetd_claim_status_pending", "ResourceClaims whose status is not known to be written.", float64(stats.Pending))
	to.Counts("multinetd_claim_status_writes_total", "Attempts to write the status of a ResourceClaim.", "outcome", map[string]uint64{"written": stats.Written, "refused": stats.Refused, "failed": stats.Failed})
	to.Gauge("multinetd_claim_devices", "Networks that the node offers as devices, or has withdrawn.", float64(stats.Offered), "state", "published")
	to.Gauge("multinetd_claim_devices", "Networks that the node offers as devices, or has withdrawn.", float64(stats.Withdrawn), "state", "withdrawn")
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

// count counts a request to the API server.
func (c *Cluster) count(r kube.Request) {
	c.requests.WithLabelValues(r.Verb, r.Resource, strconv.Itoa(r.Code)).Inc()
}
