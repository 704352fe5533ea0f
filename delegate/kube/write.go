package kube

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/rest"

	"github.com/metacni/metacni/delegate/kube/internal/apierr"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

const (
	requestTimeout = 10 * time.Second // for each request of a writer
	tellInterval   = 10 * time.Minute // between two Events about refusals
	longestDelay   = 10 * time.Minute // that an API server may ask for

	// requestsAtATime limits the requests of a writer that have no answer yet. When many
	// nodes start at once, an API server that gets the requests of all their pods together
	// answers none of them in time.
	requestsAtATime = 8

	// tolerated is how many refusals of a status, in about 30 s, are no reason for an
	// Event. While an API server starts, it refuses what it allows a moment later.
	tolerated = 5
)

// errSlow is the cause of an ADD that has waited for too long.
var errSlow = errors.New("the Kubernetes API has not answered in time")

// errNoUID is the cause of a refusal of our own: a patch without a UID could hit another
// pod of the same name.
var errNoUID = errors.New("the runtime does not tell the UID of the pod")

// errNoMirror is the cause of a failure: the object in the API is not, or not yet, that of
// the static pod.
var errNoMirror = errors.New("the static pod has no mirror pod yet")

// attempt makes the status of a pod what its records say, unless it is that already.
func (w *StatusWriter) attempt(ctx context.Context, pod nad.Pod) {
	w.mu.Lock()
	p := w.pods[pod]
	if p == nil {
		w.mu.Unlock()
		return
	}
	waiting, sandboxes := slices.Clone(p.waiting), p.sandboxes
	p.sandboxes = nil
	w.mu.Unlock()

	want, recorded, err := w.desired(ctx, pod, sandboxes)
	v := verdict{outcome: failed, err: err}
	if err == nil {
		v = w.write(ctx, pod, p, want)
	}
	if ctx.Err() != nil {
		return // the next process does it
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	more := len(p.sandboxes) > 0 // something has changed meanwhile
	if v.outcome != gone {
		for _, id := range recorded {
			if !slices.Contains(p.sandboxes, id) {
				p.sandboxes = append(p.sandboxes, id)
			}
		}
	}
	if v.outcome == early {
		w.queue.AddAfter(pod, v.delay)
		return
	}
	if p.stage == paced {
		p.stage = due
	}
	if v.outcome != failed || v.unheard && w.config.Policy != StatusRequire {
		for _, c := range waiting {
			c <- v.err
		}
		p.waiting = slices.DeleteFunc(p.waiting, func(c chan error) bool { return slices.Contains(waiting, c) })
	}
	if !w.again(ctx, pod, v) {
		w.queue.Forget(pod)
		if !more {
			p.stage, p.asked = idle, nil
		}
		if len(p.sandboxes) == 0 && len(p.waiting) == 0 {
			delete(w.pods, pod)
		}
	}
}

// again plans the next attempt, if the verdict on the last one asks for it. The caller holds w.mu.
func (w *StatusWriter) again(ctx context.Context, pod nad.Pod, v verdict) bool {
	if v.outcome != failed && v.outcome != refused {
		return false
	}
	times := w.queue.Retry(pod, v.outcome == refused, v.delay)
	if v.outcome == failed {
		w.view.log.DebugContext(ctx, "network status not written yet", "pod", pod.String(), "error", v.err)
	} else if times > tolerated {
		w.tell.Do(func() {
			w.view.log.WarnContext(ctx, "network status refused", "pod", pod.String(), "error", v.err)
			w.config.Events.program(statusNotWritten, "PatchStatus", "pod "+pod.String()+": "+v.err.Error())
		})
	}
	return true
}

// desired returns the status of the newest of the sandboxes of a pod, and those that have
// records.
func (w *StatusWriter) desired(ctx context.Context, pod nad.Pod, sandboxes []string) (newest Status, recorded []string, err error) {
	var errs []error
	for _, id := range sandboxes {
		pod.Container = id
		s, err := w.config.Desired(ctx, pod)
		switch {
		case err != nil:
			errs = append(errs, err)
		case s.Annotation == "":
			continue
		case newest.Annotation == "" || s.Created.After(newest.Created):
			newest = s
		}
		recorded = append(recorded, id)
	}
	return newest, recorded, errors.Join(errs...)
}

// write writes the status of a pod, unless that is not needed or not due yet.
func (w *StatusWriter) write(ctx context.Context, pod nad.Pod, p *podStatus, want Status) verdict {
	w.mu.Lock()
	if !w.needed(pod, p, want) {
		w.mu.Unlock()
		return verdict{}
	}
	to, v := w.target(pod, want.Static)
	if v.outcome != settled {
		w.mu.Unlock()
		return v
	}
	if p.stage != paced {
		p.stage = paced
		if delay := w.limiter.Reserve().Delay(); delay > 0 && len(p.waiting) == 0 {
			w.mu.Unlock()
			return verdict{outcome: early, delay: delay}
		}
	}
	p.stage, p.sent = sending, want.Annotation
	before, inherited, successor := p.version, p.inherited, p.successor
	ended := func(error) {}
	if w.config.Writing != nil && p.asked != nil {
		ended = w.config.Writing(p.asked, pod) //nolint:contextcheck // that of the ADD, and not of Run
	}
	w.mu.Unlock()

	if inherited != nil && w.confirms() {
		live, v := w.inherit(ctx, pod, *inherited, successor)
		if v.outcome != settled || live.Annotations[status.NetworkStatusAnnotation] == want.Annotation {
			ended(v.err)
			w.mu.Lock()
			defer w.mu.Unlock()
			if p.stage = due; v.outcome == settled {
				p.wrote(want, live.Version)
			}
			return v
		}
	}
	began := time.Now()
	version, err := w.send(ctx, pod, to.uid, want.Annotation)
	ended(err)
	v = judge(err, to.static)
	if v.outcome == settled && lower(version, before) && w.confirms() {
		_, _ = w.inherit(ctx, pod, Status{}, false) // of a database that has not been noticed before
	}

	w.mu.Lock()
	p.stage = due
	if v.unheard {
		p.stage = unheard
	}
	w.heard(ctx, began, v)
	switch {
	case v.outcome == settled:
		p.wrote(want, version)
		w.compare(pod, p)
	case v.unheard:
		p.text = "" // it may have been written
	}
	w.mu.Unlock()
	if v.outcome == settled && want.Trimmed {
		w.config.Events.Pod(pod, statusTrimmed, "PatchStatus", "the network status is too long: DNS and device information are left out")
	}
	return v
}

// wrote notes the status that the API server has of p.
func (p *podStatus) wrote(want Status, version string) {
	p.inherited = nil
	p.text, p.version, p.written = want.Annotation, version, time.Now()
}

// needed reports whether the API server has, as far as is known, another status of a pod
// than the one wanted. The caller holds w.mu.
func (w *StatusWriter) needed(pod nad.Pod, p *podStatus, want Status) bool {
	if p.late {
		if p.late = false; w.behind(pod, p) {
			p.lost()
		}
	}
	if want.Annotation == "" || want.Annotation == p.text {
		return false
	}
	object, _ := w.view.KnownPod(pod) // without annotations if it is not known
	text, has := object.Annotations[status.NetworkStatusAnnotation]
	if p.text == "" && text == want.Annotation {
		p.text, p.version, p.inherited = text, object.Version, nil
		return false
	}
	return !want.IfWritten || p.version != "" || has
}

// A target is the object of a pod in the API.
type target struct {
	uid    string // "" if it is not known
	static bool   // it is the mirror of a static pod
}

// target returns the object that holds the status of a pod. The verdict is not settled if
// there is none that can be written to safely.
func (w *StatusWriter) target(pod nad.Pod, static bool) (target, verdict) {
	object, seen := w.view.KnownPod(pod)
	_, other := w.view.KnownPod(nad.Pod{Namespace: pod.Namespace, Name: pod.Name})
	switch {
	case seen:
		return target{object.UID, pod.UID != "" && pod.UID != object.UID}, verdict{}
	case static && other:
		return target{}, verdict{outcome: failed, err: errNoMirror}
	case static:
		return target{static: true}, verdict{}
	case pod.UID == "":
		return target{}, verdict{outcome: refused, err: errNoUID}
	}
	return target{uid: pod.UID}, verdict{}
}

// send sends the request, and returns the version of the pod with the status.
func (w *StatusWriter) send(ctx context.Context, pod nad.Pod, uid, text string) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	pod.UID = uid
	answer, err := w.view.patchStatus(ctx, pod, map[string]string{status.NetworkStatusAnnotation: text})
	return answer.ResourceVersion, err
}

// onlyMetadata is an Accept header for an object without its spec and its status, or with
// them where an API server cannot leave them out.
const onlyMetadata = runtime.ContentTypeProtobuf + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1," + runtime.ContentTypeProtobuf

// patchStatus sets annotations of a pod with a patch of pods/status, which changes nothing
// else, and returns the metadata of the pod. The API server refuses a pod with another UID
// than pod.UID, unless that is empty.
func (v *View) patchStatus(ctx context.Context, pod nad.Pod, annotations map[string]string) (metav1.ObjectMeta, error) {
	type metadata struct {
		UID         string            `json:"uid,omitempty"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	patch, err := json.Marshal(struct {
		Metadata metadata `json:"metadata"`
	}{metadata{pod.UID, annotations}})
	if err != nil { // impossible
		return metav1.ObjectMeta{}, err
	}
	answer, err := v.core.do(ctx, http.MethodPatch, func(q *rest.Request) {
		q.Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("status").
			SetHeader("Content-Type", string(types.MergePatchType)).SetHeader("Accept", onlyMetadata).Body(patch)
	}).Get()
	if err != nil {
		return metav1.ObjectMeta{}, err
	}
	m, err := meta.Accessor(answer)
	if err != nil || m.GetName() != pod.Name || m.GetResourceVersion() == "" {
		return metav1.ObjectMeta{}, errors.New("the answer is not the pod")
	}
	return meta.AsPartialObjectMetadata(m).ObjectMeta, nil
}

// heard counts a request, and notes whether the API server is away. The caller holds w.mu.
func (w *StatusWriter) heard(ctx context.Context, began time.Time, v verdict) {
	switch v.outcome {
	case settled:
		w.stats.Written++
	case gone:
		w.stats.Gone++
	case refused:
		w.stats.Refused++
	default:
		w.stats.Failed++
	}
	if v.unheard && began.Before(w.answered) {
		return // others have been answered since
	}
	if !v.unheard {
		w.answered = began
	}
	w.setAway(ctx, v.unheard, v.err)
}

// setAway notes whether the API server is away. When it is back, all statuses that it has
// not answered are tried again. The caller holds w.mu.
func (w *StatusWriter) setAway(ctx context.Context, away bool, err error) {
	switch {
	case away && !w.away:
		w.view.log.WarnContext(ctx, "Kubernetes API does not answer, statuses of pods are written later", "error", err)
	case !away && w.away:
		w.view.log.InfoContext(ctx, "Kubernetes API answers again")
		for pod, p := range w.pods {
			if p.stage == unheard {
				w.queue.Add(pod) // however long its pause still is
			}
		}
	}
	w.away = away
}

// repairInterval is the time between two writes of what somebody else changes.
const repairInterval = 30 * time.Second

// repair looks at what the View has of a pod that has changed, if the pod has a status.
func (w *StatusWriter) repair(object Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for pod, p := range w.pods {
		if object.is(pod) {
			w.late(pod, p)
			w.compare(pod, p)
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
	w.outdated(pod, object)
	w.stats.Overwritten++
	p.text = ""
	p.begin()
	w.queue.AddAfter(pod, time.Until(p.written.Add(repairInterval)))
	if !p.contested {
		p.contested = true
		w.config.Events.Pod(pod, statusOverwritten, "PatchStatus", "somebody else has changed the network status: is there another meta-plugin?")
	}
}

// An outcome is what becomes of an attempt to write a status.
type outcome int

const (
	settled outcome = iota // the API server has it, or there is nothing to be written
	early                  // not tried yet, because of the rate
	gone                   // there is no such pod, and there will not be
	refused                // it will not be written until somebody changes something
	failed                 // it may be written if it is tried again
)

// A verdict says what becomes of an attempt, and why.
type verdict struct {
	outcome outcome
	err     error         // if refused or failed
	unheard bool          // the API server has not answered, or only that it cannot
	delay   time.Duration // of the next attempt, at least
}

// judge returns the verdict on a request for a pod. static says that the object in the API
// comes and goes without the pod.
func judge(err error, static bool) verdict {
	if err == nil {
		return verdict{}
	}
	v := verdict{outcome: failed, err: err, delay: apierr.Delay(err, longestDelay)}
	var said apierrors.APIStatus
	if !errors.As(err, &said) {
		v.unheard = true
		return v
	}
	switch code := said.Status().Code; {
	case code == http.StatusNotFound && !apierrors.IsUnexpectedServerError(err),
		code == http.StatusUnprocessableEntity && isOtherUID(said.Status()):
		if !static {
			return verdict{outcome: gone}
		}
	case apierr.Refused(err):
		v.outcome = refused
	default:
		v.unheard = code < 400 || code >= 500
	}
	return v
}

// isOtherUID reports whether a patch was refused because the object has another UID.
func isOtherUID(s metav1.Status) bool {
	return s.Details != nil && slices.ContainsFunc(s.Details.Causes, func(c metav1.StatusCause) bool {
		return c.Field == "metadata.uid"
	})
}
