package kube

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// repairInterval is the time between two writes of what somebody else changes.
const repairInterval = 30 * time.Second

// repair looks at what the View has of the pods with a status, after each change of the
// View, until ctx ends.
func (w *StatusWriter) repair(ctx context.Context) {
	for {
		next := w.view.pods.store.next()
		w.mu.Lock()
		for pod, p := range w.pods {
			w.compare(pod, p)
		}
		w.mu.Unlock()
		select {
		case <-next:
		case <-ctx.Done():
			return
		}
	}
}

// compare has the status of a pod written again if somebody else has changed it since the
// writer wrote it. The caller holds w.mu.
func (w *StatusWriter) compare(pod nad.Pod, p *podStatus) {
	if p.stage == sending || p.text == "" {
		return // there is nothing to compare with
	}
	object, seen := w.view.KnownPod(pod)
	if !seen || object.Deleted || object.Annotations[status.NetworkStatusAnnotation] == p.text {
		return
	}
	if newer, err := resourceversion.CompareResourceVersion(object.Version, p.version); err != nil || newer <= 0 {
		return // it is what was there before
	}
	w.stats.Overwritten++
	p.text = ""
	p.begin()
	w.queue.AddAfter(pod, time.Until(p.written.Add(repairInterval)))
	if !p.contested {
		p.contested = true
		w.config.Events.Pod(pod, statusOverwritten, "PatchStatus", "somebody else has changed the network status: is there another meta-plugin?")
	}
}
