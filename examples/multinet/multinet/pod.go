package multinet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// asked returns what the pod asks for: the network that replaces the primary, or nil,
// and those that it selects. It fails if the pod may not have one of them.
func (c *config) asked(annotations map[string]string) (primary *choice, selected []choice, err error) {
	instead, err := nad.ParseDefaultNetwork(annotations[nad.DefaultNetworkAnnotation], c.call.IfName)
	if err != nil {
		return nil, nil, err
	}
	selections, err := parseSelections(annotations, c.most)
	if err != nil {
		return nil, nil, err
	}
	if instead != nil {
		routed := func(s netconf.Selection) bool { return len(s.DefaultRoute) > 0 }
		if i := slices.IndexFunc(selections, routed); i >= 0 && routed(*instead) {
			return nil, nil, fmt.Errorf("annotations %s and %s together: %w", nad.NetworksAnnotation, nad.DefaultNetworkAnnotation, &netconf.Error{
				Kind: netconf.ErrInvalid, Network: instead.Name, Key: "default-route",
				Err: fmt.Errorf("network %q has gateways already, and only one may have them", selections[i].Name),
			})
		}
		ch, err := c.allow(*instead, nad.PodDefault)
		if err != nil {
			return nil, nil, err
		}
		primary = &ch
	}
	for _, s := range selections {
		ch, err := c.allow(s, nad.Selected)
		if err != nil {
			return nil, nil, err
		}
		selected = append(selected, ch)
	}
	return primary, selected, nil
}

// allow returns the network that the pod selects with s. It fails if the pod may not
// have it.
func (c *config) allow(s netconf.Selection, use nad.Use) (choice, error) {
	ch := choice{use: use, selection: s, ifName: s.Interface}
	var err error
	if c.inKubernetes() {
		ch.ref, err = c.policy.Ref(c.pod.Namespace, s, use)
	}
	if err == nil && (c.inKubernetes() || use == nad.PodDefault && c.policy.NoPodDefault) {
		_, err = c.policy.Decide(c.pod.Namespace, ch.ref, use)
	}
	if err == nil {
		err = ch.checkInterface()
	}
	return ch, c.about(ch, err)
}

// inKubernetes reports whether the container is one of a pod.
func (c *config) inKubernetes() bool { return c.pod.Namespace != "" }

// claimed returns the networks that the ResourceClaims of the pod ask for. Only a pod with a UID
// has any: claims are reserved for a UID. It fails if the pod may not have one of them, or if a
// device is there twice: what is attached for it could not be told apart.
func (c *config) claimed(ctx context.Context) ([]choice, error) {
	if c.cluster.Claims == nil || !c.inKubernetes() || c.pod.UID == "" {
		return nil, nil
	}
	claims, err := c.cluster.Claims(ctx, c.pod)
	if err != nil {
		return nil, fmt.Errorf("ResourceClaims of pod %s: %w", c.pod, err)
	}
	var all []choice
	for _, claim := range claims {
		ch := choice{use: nad.Claimed, claim: claim.Claim, ref: claim.Definition, network: claim.Network, ifName: claim.IfName}
		var err error
		switch {
		case slices.ContainsFunc(all, func(other choice) bool { return other.claim == ch.claim }):
			err = &netconf.Error{Kind: netconf.ErrInvalid, Err: errors.New("the device is there twice")}
		case ch.network.IsZero() == (ch.ref == nad.Ref{}):
			err = &netconf.Error{Kind: netconf.ErrInvalid, Err: errors.New("want a network or the name of a definition, and not both")}
		case ch.network.IsZero():
			_, err = c.policy.Decide(c.pod.Namespace, ch.ref, ch.use)
		}
		if err == nil {
			err = ch.checkInterface()
		}
		if err != nil {
			return nil, c.about(ch, err)
		}
		all = append(all, ch)
	}
	return all, nil
}

// podAnnotations is the capability with which containerd and CRI-O pass on all
// annotations of a pod.
const podAnnotations = "io.kubernetes.cri.pod-annotations"

// Selected returns what a pod with these annotations selects. It allows as many selections
// as a configuration can allow.
func Selected(annotations map[string]string) ([]netconf.Selection, error) {
	return parseSelections(annotations, mostSelections)
}

func parseSelections(annotations map[string]string, most int) ([]netconf.Selection, error) {
	all, err := netconf.ParseSelectionN(annotations[nad.NetworksAnnotation], most)
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
