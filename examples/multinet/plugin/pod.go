package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// asked returns what the pod asks for: the network that replaces the primary, or nil,
// and those that it selects. It fails if the pod may not have one of them.
func (c *config) asked(annotations map[string]string) (primary *choice, selected []choice, err error) {
	instead, insteadErr := nad.ParseDefaultNetwork(annotations[nad.DefaultNetworkAnnotation], c.call.IfName)
	selections, err := parseSelections(annotations, c.most)
	if err = cmp.Or(insteadErr, err); err != nil {
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
		ch, err := c.allow(*instead, nad.UsePodDefault)
		if err != nil {
			return nil, nil, err
		}
		primary = &ch
	}
	for _, s := range selections {
		ch, err := c.allow(s, nad.UseSelected)
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
	if err == nil && (c.inKubernetes() || use == nad.UsePodDefault && c.policy.NoPodDefault) {
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
		ch := choice{use: nad.UseClaimed, claim: claim.Claim, ref: claim.Definition, network: claim.Network, ifName: claim.IfName}
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
	identified := c.inKubernetes() && c.pod.Name != ""
	if c.Annotations != fromCluster || !identified {
		passed, err := c.call.PodAnnotations(nad.NetworksAnnotation, nad.DefaultNetworkAnnotation, nad.SourceAnnotation)
		if err != nil || passed != nil {
			return passed, err
		}
	}
	switch {
	case !identified:
		return nil, nil //nolint:nilnil // there are no annotations
	case c.Annotations == fromRuntime:
		return nil, c.call.Invalid("annotations", fmt.Errorf(
			`the container runtime passes none: add "capabilities":{%q:true} to the configuration, or use a runtime that knows it`, plugin.PodAnnotationsCapability))
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
