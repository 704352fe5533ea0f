package kube

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/metacni/metacni/netconf/nad"
)

// Annotations that the kubelet gives to its pods.
const (
	sourceAnnotation = "kubernetes.io/config.source" // "api", or where a static pod is from
	mirrorAnnotation = "kubernetes.io/config.mirror" // of a static pod's mirror: the UID of the former
)

// A Pod is what a [View] keeps of a pod.
type Pod struct {
	Namespace, Name string
	UID             string // of the object: that of a static pod's mirror is not the kubelet's
	Version         string // metadata.resourceVersion

	// Annotations are those of networks, and the kubelet's kubernetes.io/config.*.
	// Do not change them.
	Annotations map[string]string

	HostNetwork bool
	Deleted     bool // metadata.deletionTimestamp is set
	Phase       corev1.PodPhase
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

// Pod returns the pod of a container.
func (v *View) Pod(ctx context.Context, of nad.Pod) (Pod, error) {
	p, ok := v.cachedPod(of)
	if !ok {
		return Pod{}, &Error{Object: "pod " + of.Namespace + "/" + of.Name, Kind: ErrGone}
	}
	return p, ctx.Err()
}

// cachedPod returns the pod of a container if the View has it. It does not wait.
func (v *View) cachedPod(of nad.Pod) (Pod, bool) {
	var p Pod
	return p, p.is(of)
}
