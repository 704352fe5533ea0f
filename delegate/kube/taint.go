package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
)

// untaintTimeout limits a request for a node.
const untaintTimeout = 10 * time.Second

// RemoveTaint removes the taints with a key from Config.Node, whatever their value and
// effect. It returns nil as soon as the node has none. It needs the rights to get and patch
// nodes.
//
// What the API server does not do is tried again, after 0.2 s first and after a minute in the
// end, until ctx ends: RemoveTaint then fails with the last error, which is also
// context.Cause(ctx). The log says once what fails. Without Config.Node it fails at once.
//
// The other taints stay as they are: the patch holds for the version of the node that was read,
// and is made again if somebody has changed the node meanwhile.
func (v *View) RemoveTaint(ctx context.Context, key string) error {
	if v.config.Node == "" {
		return errors.New("the name of the node is needed to remove its taint")
	}
	delay := wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 20, Cap: time.Minute}
	said := metav1.StatusReason("nothing")
	for {
		removed, err := v.removeTaint(ctx, key)
		if err == nil {
			if removed > 0 {
				v.log.InfoContext(ctx, "taint removed", "node", v.config.Node, "taint", key)
			}
			return nil
		}
		if reason := apierrors.ReasonForError(err); reason != said && ctx.Err() == nil {
			v.log.WarnContext(ctx, "the taint of the node is not removed yet", "node", v.config.Node, "taint", key, "error", err)
			said = reason
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("taint %s of node %s: %w: %w", key, v.config.Node, context.Cause(ctx), err)
		case <-time.After(delay.Step()):
		}
	}
}

// removeTaint tries once, and returns how many taints it has removed.
func (v *View) removeTaint(ctx context.Context, key string) (removed int, err error) {
	ctx, cancel := context.WithTimeout(ctx, untaintTimeout)
	defer cancel()
	// As JSON: the patch must have the other taints as the server writes them, with keys that
	// this program does not know.
	data, err := v.core.do(ctx, http.MethodGet, v.node).Raw()
	if err != nil {
		return 0, fmt.Errorf("get: %w", cause(err))
	}
	patch, removed, err := withoutTaint(data, key)
	if err != nil || removed == 0 {
		return 0, err
	}
	err = v.core.do(ctx, http.MethodPatch, func(q *rest.Request) {
		v.node(q)
		q.SetHeader("Content-Type", string(types.MergePatchType)).Body(patch)
	}).Error()
	if err != nil {
		return 0, fmt.Errorf("patch: %w", cause(err))
	}
	return removed, nil
}

// node makes q a request for the node, which is answered in JSON.
func (v *View) node(q *rest.Request) {
	q.Resource("nodes").Name(v.config.Node).SetHeader("Accept", runtime.ContentTypeJSON)
}

// withoutTaint returns the merge patch that removes the taints with a key from a version of a
// node, and how many these are.
func withoutTaint(node []byte, key string) (patch []byte, removed int, err error) {
	var object struct {
		Kind     string `json:"kind,omitempty"`
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Spec struct {
			Taints []json.RawMessage `json:"taints"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(node, &object); err != nil || object.Kind != "Node" || object.Metadata.ResourceVersion == "" {
		return nil, 0, errors.New("the answer is not a node")
	}
	all := len(object.Spec.Taints)
	object.Kind = ""
	object.Spec.Taints = slices.DeleteFunc(object.Spec.Taints, func(raw json.RawMessage) bool {
		var taint corev1.Taint
		return json.Unmarshal(raw, &taint) == nil && taint.Key == key
	})
	patch, err = json.Marshal(object)
	return patch, all - len(object.Spec.Taints), err
}
