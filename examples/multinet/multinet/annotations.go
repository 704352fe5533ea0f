package multinet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// podAnnotations is the capability with which containerd and CRI-O pass on all
// annotations of a pod.
const podAnnotations = "io.kubernetes.cri.pod-annotations"

// Selected returns what a pod with these annotations selects. It allows as many selections
// as a configuration can allow.
func Selected(annotations map[string]string) ([]netconf.Selection, error) {
	return parseSelections(annotations, mostSelections)
}

func parseSelections(annotations map[string]string, most maxSelections) ([]netconf.Selection, error) {
	all, err := netconf.ParseSelectionN(annotations[nad.NetworksAnnotation], int(most))
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", nad.NetworksAnnotation, err)
	}
	return all, nil
}

// annotations returns those annotations of the pod that matter to multinet. What the
// runtime passes is the whole truth, even if it is empty: it is the pod that the kubelet
// starts. The cluster is asked where the runtime passes nothing.
func (c *config) annotations(ctx context.Context) (map[string]string, error) {
	passed, ok := c.RuntimeConfig[podAnnotations]
	identified := c.inKubernetes() && c.pod.Name != ""
	switch {
	case ok && (c.Annotations != fromCluster || !identified):
		return c.passedAnnotations(passed)
	case !identified:
		return nil, nil //nolint:nilnil // there are no annotations
	case c.Annotations == fromRuntime:
		return nil, c.call.Invalid("annotations", fmt.Errorf(
			`the container runtime passes none: add "capabilities":{%q:true} to the configuration, or use a runtime that knows it`, podAnnotations))
	case c.cluster.Annotations != nil:
		annotations, err := c.cluster.Annotations(ctx, c.pod)
		if err != nil {
			return nil, fmt.Errorf("annotations of pod %s: %w", c.pod, err)
		}
		return annotations, nil
	case c.Annotations == fromCluster:
		return nil, c.call.Invalid("annotations", errors.New("only a daemon with access to the Kubernetes API can ask it"))
	}
	return nil, nil //nolint:nilnil // there are no annotations
}

// passedAnnotations decodes the annotations in the configuration. Others than those
// that matter may have values of any type.
func (c *config) passedAnnotations(passed json.RawMessage) (map[string]string, error) {
	const key = "runtimeConfig." + podAnnotations
	fail := func(key string, err error) error {
		return &netconf.Error{Kind: netconf.ErrDecode, Network: c.call.Name, Key: key, Err: err}
	}
	var all map[string]json.RawMessage
	if json.Unmarshal(passed, &all) != nil {
		return nil, fail(key, errors.New("not an object"))
	}
	annotations := make(map[string]string)
	for _, name := range []string{nad.NetworksAnnotation, nad.DefaultNetworkAnnotation, nad.SourceAnnotation} {
		raw, ok := all[name]
		if !ok {
			continue
		}
		var value string
		if json.Unmarshal(raw, &value) != nil {
			return nil, fail(key+"."+name, errors.New("not a string"))
		}
		annotations[name] = value
	}
	return annotations, nil
}
