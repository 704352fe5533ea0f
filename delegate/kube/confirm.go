package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// An object of the API is newer than the records of its pod if it was read after them, and has the
// status that was written for them. One that was read after them and does not have that status
// may be of an older copy of the database, which somebody has restored: its annotations are those
// of that copy, also after the status has been written again. So it is not enough to look at the
// object. The annotation of networks that came with it is outdated until somebody edits it, see
// [StatusConfig].Outdated.
//
// Where somebody else has overwritten the status, this is the same: nobody can tell. A process that
// has ended may not have written the last status, so to its successor another status will do.

// lagTime is how long an object in the View may be older than the answer to the patch of its
// status, before somebody asks the API server again.
const lagTime = time.Second

var (
	errWriting = errors.New("its network status is being written")
	errLater   = errors.New("its network status is not known to the writer yet")
)

// lower reports whether a resource version is certainly lower than another one of the same object.
// Kubernetes 1.35 and later promise that versions have an order. Where they have none, nothing
// worse follows from lower than a request, and a change that is not made.
func lower(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order < 0
}

// Confirm returns the pod of a container as the API server has it now, for what only an object may
// decide that is newer than the records of the pod, which the caller does not change meanwhile. It
// makes one request. An annotation that [StatusConfig].Outdated, which must not be nil, was told of
// stays outdated: the caller remembers it.
//
// It fails with [ErrGone] if there is no such pod, with [ErrOutdated] if the object may be
// older than the records, or if pod has no UID, and with [ErrNotSynced] if that is not known now:
// the API server does not answer, or the status is being written. All have CNI code 11.
func (w *StatusWriter) Confirm(ctx context.Context, pod nad.Pod) (Pod, error) {
	live, err := w.confirm(ctx, pod)
	if err != nil {
		return Pod{}, fmt.Errorf("pod %s: %w", pod, err)
	}
	return live, nil
}

func (w *StatusWriter) confirm(ctx context.Context, pod nad.Pod) (Pod, error) {
	switch {
	case pod.UID == "":
		return Pod{}, because(ErrOutdated, errNoUID)
	case w.view.pods == nil:
		return Pod{}, because(ErrNotSynced, errNoNode)
	}
	before := w.known(pod)
	if before == nil {
		w.Resume([]nad.Pod{pod})
		return Pod{}, because(ErrNotSynced, errLater)
	}
	live, err := w.view.livePod(ctx, pod)
	if err != nil {
		return Pod{}, err
	}
	older := lower(live.Version, before.version)
	if !older && before.of(live) {
		return live, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pods[identity(pod)]
	if p == nil || p.stage == sending || p.version != before.version {
		return Pod{}, because(ErrNotSynced, errWriting)
	}
	w.outdated(pod, live)
	if older {
		w.examine(identity(pod), p, 0)
	}
	return Pod{}, ErrOutdated
}

// known returns a copy of what is known of the status of a pod, or nil.
func (w *StatusWriter) known(pod nad.Pod) *podStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.pods[identity(pod)]; p != nil {
		return new(*p)
	}
	return nil
}

// of reports whether an object has the status that p says was written last, or is being written.
func (p *podStatus) of(object Pod) bool {
	text := object.Annotations[status.NetworkStatusAnnotation]
	switch {
	case text == p.sent && text != "":
		return true
	case p.inherited != nil:
		return object.has(*p.inherited) || p.successor && text != ""
	}
	return p.text == "" || p.text == text
}

// outdated tells of an object that may be older than the records of the pod.
func (w *StatusWriter) outdated(pod nad.Pod, object Pod) {
	if w.config.Outdated != nil {
		w.config.Outdated(identity(pod), object)
	}
}

// examine has the status of a pod written again after delay, unless the API server has it. The
// caller holds w.mu.
func (w *StatusWriter) examine(pod nad.Pod, p *podStatus, delay time.Duration) {
	p.lost()
	p.begin()
	w.queue.AddAfter(pod, delay)
}

// lost notes that it is not known any more whether the API server has the status of p.
func (p *podStatus) lost() {
	if p.text != "" {
		p.text, p.inherited, p.successor = "", &Status{Annotation: p.text}, false
	}
}

// restored examines all statuses, ten pods a second: the database of the API server was replaced
// by an older copy.
func (w *StatusWriter) restored() {
	w.mu.Lock()
	defer w.mu.Unlock()
	var delay time.Duration
	for pod, p := range w.pods {
		w.examine(pod, p, delay)
		delay += time.Second / 10
	}
}

// late is told that the View shows an object of a pod that is older than the status which was
// written. The watch may show that later, or never: then the database is an older one. The caller
// holds w.mu.
func (w *StatusWriter) late(pod nad.Pod, p *podStatus) {
	if p.stage != sending && p.text != "" && w.behind(pod, p) {
		p.late = true
		w.queue.AddAfter(pod, lagTime)
	}
}

// behind reports whether the View shows an object of a pod that is older than the status which was
// written. The caller holds w.mu.
func (w *StatusWriter) behind(pod nad.Pod, p *podStatus) bool {
	object, seen := w.view.KnownPod(pod)
	return seen && !object.Deleted && lower(object.Version, p.version) && object.Annotations[status.NetworkStatusAnnotation] != p.text
}

// confirms reports whether somebody needs to know whether objects are newer than records.
func (w *StatusWriter) confirms() bool { return w.config.Outdated != nil && w.view.pods != nil }

// inherits notes the status that another process should have written for the records of a pod.
func (w *StatusWriter) inherits(pod nad.Pod) {
	if !w.confirms() {
		return
	}
	w.mu.Lock()
	var sandboxes []string
	if p := w.pods[pod]; p != nil && p.version == "" {
		sandboxes = slices.Clone(p.sandboxes)
	}
	w.mu.Unlock()
	should, _, err := w.desired(w.view.ctx, pod, sandboxes)
	if err != nil {
		should.Annotation = "not known"
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.pods[pod]; p != nil && p.version == "" {
		p.inherited, p.successor = &should, true
	}
}

// inherit returns what the API server has of a pod before the first status is written that follows
// on those of another process, or another database. It tells of an object without the status that
// should be there. If the API server may tell later, the verdict is not settled.
func (w *StatusWriter) inherit(ctx context.Context, pod nad.Pod, should Status, successor bool) (Pod, verdict) {
	live, err := w.view.livePod(ctx, pod)
	if v := judge(err, false); v.outcome == failed && !errors.Is(err, ErrGone) {
		return Pod{}, v
	}
	if err == nil && !live.has(should) && (!successor || live.Annotations[status.NetworkStatusAnnotation] == "") {
		w.outdated(pod, live)
	}
	return live, verdict{}
}

// has reports whether p has the status that should be written for it.
func (p Pod) has(should Status) bool {
	text := p.Annotations[status.NetworkStatusAnnotation]
	return text == should.Annotation || text == "" && should.IfWritten
}
