package kube

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// mirrorAnnotation of a static pod's mirror is the UID that the kubelet has given the pod.
const mirrorAnnotation = "kubernetes.io/config.mirror"

// A Pod is what a [View] keeps of a pod.
type Pod struct {
	Namespace, Name string
	UID             string // of the object: that of a static pod's mirror is not the kubelet's
	Version         string // metadata.resourceVersion

	// Annotations are the annotations of networks, the kubelet's kubernetes.io/config.*, and
	// tracing.k8s.io/traceparent.
	// Do not change them.
	Annotations map[string]string

	// Claims are the names of the ResourceClaims that are reserved for the pod, sorted: those
	// that it names, those made for it of a template, and that of its extended resources.
	// Nil means none. Do not change them.
	Claims []string

	HostNetwork bool            // spec.hostNetwork
	Deleted     bool            // metadata.deletionTimestamp is set
	Phase       corev1.PodPhase // status.phase
}

// is reports whether p is the pod of a container. A static pod has the UID that the
// kubelet gave it, which its mirror holds. Runtimes that do not tell a UID mean
// the pod of that name.
func (p Pod) is(of nad.Pod) bool {
	if p.Namespace != of.Namespace || p.Name != of.Name {
		return false
	}
	if of.UID == "" {
		return !p.Deleted
	}
	return p.UID == of.UID || p.Annotations[mirrorAnnotation] == of.UID
}

// keptAnnotations are those of a Pod.
var keptAnnotations = []string{ //nolint:gochecknoglobals // never written
	"tracing.k8s.io/traceparent",
	nad.NetworksAnnotation, nad.DefaultNetworkAnnotation, status.NetworkStatusAnnotation,
	nad.SourceAnnotation, mirrorAnnotation, "kubernetes.io/config.hash", "kubernetes.io/config.seen",
}

// keepPod returns what a store keeps of a pod.
func keepPod(object any) (types.NamespacedName, Pod, bool) {
	o, ok := object.(*corev1.Pod)
	if !ok || o.Name == "" {
		return types.NamespacedName{}, Pod{}, false
	}
	p := Pod{
		Namespace: o.Namespace, Name: o.Name, UID: string(o.UID), Version: o.ResourceVersion,
		HostNetwork: o.Spec.HostNetwork, Deleted: o.DeletionTimestamp != nil, Phase: o.Status.Phase,
		Annotations: make(map[string]string), Claims: claimsOf(o),
	}
	for _, key := range keptAnnotations {
		if value, ok := o.Annotations[key]; ok {
			p.Annotations[key] = value
		}
	}
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, p, true
}

// claimsOf returns the names of the ResourceClaims of a pod.
func claimsOf(o *corev1.Pod) []string {
	var names []string
	add := func(name *string) {
		if name != nil && *name != "" {
			names = append(names, *name)
		}
	}
	for _, c := range o.Spec.ResourceClaims {
		add(c.ResourceClaimName)
	}
	for _, c := range o.Status.ResourceClaimStatuses {
		add(c.ResourceClaimName)
	}
	if c := o.Status.ExtendedResourceClaimStatus; c != nil {
		add(&c.ResourceClaimName)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Pod returns the pod of a container from the View: the one with the UID in of, or the mirror
// of the static pod with that UID. Without a UID it is the pod of that name, unless it is
// being deleted. If the View does not have it, Pod waits for Config.PodWait, and then asks
// the API server once. It leaves at least two fifths of the time that ctx has.
//
// Pod fails with [ErrGone] if there is no such pod. It fails with [ErrNotSynced] if that is
// not known, for a View older than Config.MaxViewAge, and without Config.Node. Both have CNI
// code 11: a pod that is not visible yet must not start without its networks.
func (v *View) Pod(ctx context.Context, of nad.Pod) (Pod, error) {
	object := "pod " + of.String()
	if v.pods == nil {
		return Pod{}, fmt.Errorf("%s: %w", object, because(ErrNotSynced, errNoNode))
	}
	watchPart(v, v.pods, &corev1.Pod{})
	key := types.NamespacedName{Namespace: of.Namespace, Name: of.Name}
	p, found, err := v.pods.find(ctx, key, v.config.PodWait, func(p Pod) bool { return p.is(of) })
	if err == nil && !found {
		p, err = v.livePod(ctx, of)
	}
	if err != nil {
		return Pod{}, fmt.Errorf("%s: %w", object, err)
	}
	return p, nil
}

// OnPod calls f with each pod in the View, and later with each pod that is new or has
// changed. f must not block. It may be called with the same pod again, and by two
// goroutines at the same time. There are pods only while they are watched, see Config.Pods.
func (v *View) OnPod(f func(Pod)) {
	if v.pods == nil {
		return
	}
	v.pods.store.follow(func(key types.NamespacedName) {
		if p, found := v.pods.store.get(key); found {
			f(p)
		}
	})
}

// livePod asks the API server for a pod that the View does not have. The right to list
// pods, which the View has, is enough for it.
func (v *View) livePod(ctx context.Context, of nad.Pod) (Pod, error) {
	ctx, cancel := within(ctx, liveLimit)
	defer cancel()
	opts := metav1.ListOptions{FieldSelector: fields.AndSelectors(
		fields.OneTermEqualSelector("metadata.name", of.Name),
		fields.OneTermEqualSelector("spec.nodeName", v.config.Node),
	).String()}
	var list corev1.PodList
	err := v.core.do(ctx, http.MethodGet, func(q *rest.Request) {
		q.Namespace(of.Namespace).Resource("pods").
			SpecificallyVersionedParams(&opts, metav1.ParameterCodec, corev1.SchemeGroupVersion)
	}).Into(&list)
	for i := range list.Items {
		if _, p, ok := keepPod(&list.Items[i]); ok && p.is(of) {
			v.pods.waits.live.Add(1)
			return p, nil
		}
	}
	v.pods.waits.none.Add(1)
	if err != nil {
		return Pod{}, because(ErrNotSynced, cause(err))
	}
	return Pod{}, ErrGone
}

// KnownPod returns the pod of a container if the View has it, however old that is, see
// [View.Pod]. It does not wait, asks nobody, and does not begin to watch pods.
func (v *View) KnownPod(of nad.Pod) (Pod, bool) {
	if v.pods == nil {
		return Pod{}, false
	}
	p, found := v.pods.store.get(types.NamespacedName{Namespace: of.Namespace, Name: of.Name})
	if !found || !p.is(of) {
		return Pod{}, false
	}
	return p, true
}

// readTimeout limits a request that a person waits for.
const readTimeout = 5 * time.Second

// NetworkStatus returns the annotation network-status that the API server has of a pod, ""
// if the pod has none. It asks each time, with the right that a [StatusWriter] has: a patch
// of pods/status that changes nothing is answered with its metadata.
//
// It fails with [ErrGone] if there is no such pod, and with [ErrNotSynced] if the API
// server does not answer or does not allow it. A pod without a UID is the one of that
// name.
func (v *View) NetworkStatus(ctx context.Context, pod nad.Pod) (string, error) {
	object := "pod " + pod.String()
	if cached, ok := v.KnownPod(pod); ok {
		pod.UID = cached.UID // that of a static pod's mirror is not the kubelet's
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	answer, err := v.patchStatus(ctx, pod, nil)
	switch {
	case err == nil:
		return answer.Annotations[status.NetworkStatusAnnotation], nil
	case judge(err, false).outcome == gone:
		return "", fmt.Errorf("%s: %w", object, ErrGone)
	}
	return "", fmt.Errorf("%s: %w", object, because(ErrNotSynced, cause(err)))
}
