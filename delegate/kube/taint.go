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
// The other taints stay, also those that others add, change or remove at the same time: the
// patch names each taint in full, and the server refuses it if the taints have moved.
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
	// As JSON, because the patch must have the taints as the server writes them, with keys
	// that this program does not know.
	data, err := v.core.do(ctx, http.MethodGet, v.node).Raw()
	if err != nil {
		return 0, fmt.Errorf("get: %w", cause(err))
	}
	patch, err := withoutTaint(data, key)
	if err != nil || len(patch) == 0 {
		return 0, err
	}
	body, err := json.Marshal(patch)
	if err != nil { // impossible
		return 0, err
	}
	err = v.core.do(ctx, http.MethodPatch, func(q *rest.Request) {
		v.node(q)
		q.SetHeader("Content-Type", string(types.JSONPatchType)).Body(body)
	}).Error()
	if err != nil {
		return 0, fmt.Errorf("patch: %w", cause(err))
	}
	return len(patch) / 2, nil
}

// node makes q a request for the node, which is answered in JSON.
func (v *View) node(q *rest.Request) {
	q.Resource("nodes").Name(v.config.Node).SetHeader("Accept", runtime.ContentTypeJSON)
}

// An operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op    string          `json:"op"`
	Path  string          `json:"path"`
	Value json.RawMessage `json:"value,omitempty"`
}

// withoutTaint returns the operations that remove the taints with a key from a node: first
// the last one, so that the places of the others hold.
func withoutTaint(node []byte, key string) ([]operation, error) {
	var object struct {
		Kind string `json:"kind"`
		Spec struct {
			Taints []json.RawMessage `json:"taints"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(node, &object); err != nil || object.Kind != "Node" {
		return nil, errors.New("the answer is not a node")
	}
	var patch []operation
	for i, raw := range slices.Backward(object.Spec.Taints) {
		var taint corev1.Taint
		if err := json.Unmarshal(raw, &taint); err != nil || taint.Key != key {
			continue
		}
		path := fmt.Sprintf("/spec/taints/%d", i)
		patch = append(patch, operation{"test", path, raw}, operation{"remove", path, nil})
	}
	return patch, nil
}
