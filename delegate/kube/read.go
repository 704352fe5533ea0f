package kube

import (
	"context"
	"time"

	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

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
		return "", fault.Of("", object, ErrGone)
	}
	return "", fault.Of("", object, because(ErrNotSynced, cause(err)))
}
