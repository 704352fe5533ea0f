package multinet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// asked returns what the pod asks for: the network that replaces the primary, or nil,
// and those that it selects. It fails if the pod may not have one of them.
func (c *config) asked(annotations map[string]string) (primary *wanted, selected []wanted, err error) {
	instead, err := nad.ParseDefaultNetwork(annotations[nad.DefaultNetworkAnnotation], c.call.IfName)
	if err != nil {
		return nil, nil, err
	}
	selections, err := parseSelections(annotations, c.MaxSelections)
	if err != nil {
		return nil, nil, err
	}
	if instead != nil {
		if err := netconf.CheckSelections(append(selections, *instead)...); err != nil {
			return nil, nil, fmt.Errorf("annotations %s and %s together: %w", nad.NetworksAnnotation, nad.DefaultNetworkAnnotation, err)
		}
		w, err := c.allow(*instead, nad.PodDefault)
		if err != nil {
			return nil, nil, err
		}
		primary = &w
	}
	for _, s := range selections {
		w, err := c.allow(s, nad.Selected)
		if err != nil {
			return nil, nil, err
		}
		selected = append(selected, w)
	}
	return primary, selected, nil
}

// allow returns the network that the pod selects with s. It fails if the pod may not
// have it.
func (c *config) allow(s netconf.Selection, use nad.Use) (wanted, error) {
	w := wanted{use: use, selection: s, ifName: s.Interface}
	var err error
	if c.inKubernetes() {
		w.ref, err = c.policy.Ref(c.pod.Namespace, s, use)
	}
	if err == nil && (c.inKubernetes() || use == nad.PodDefault && c.policy.NoPodDefault) {
		_, err = c.policy.Decide(c.pod.Namespace, w.ref, use)
	}
	if err == nil {
		err = w.checkInterface()
	}
	return w, c.about(w, err)
}

// inKubernetes reports whether the container is one of a pod.
func (c *config) inKubernetes() bool { return c.pod.Namespace != "" }

// claims returns what the ResourceClaims of the pod ask for. Only a pod with a UID has any:
// claims are reserved for a UID.
func (c *config) claims(ctx context.Context) ([]Claimed, error) {
	if c.cluster.Claims == nil || !c.inKubernetes() || c.pod.UID == "" {
		return nil, nil
	}
	claims, err := c.cluster.Claims(ctx, c.pod)
	if err != nil {
		return nil, fmt.Errorf("ResourceClaims of pod %s: %w", c.pod, err)
	}
	return claims, nil
}

// claimed returns the networks that claims ask for. It fails if the pod may not have one of
// them, or if a device is there twice: what is attached for it could not be told apart.
func (c *config) claimed(claims []Claimed) ([]wanted, error) {
	all := make([]wanted, len(claims))
	for i, claim := range claims {
		w := wanted{use: nad.Claimed, claim: claim.Claim, ref: claim.Definition, network: claim.Network, ifName: claim.IfName}
		var err error
		switch {
		case slices.ContainsFunc(all[:i], func(other wanted) bool { return other.claim == w.claim }):
			err = &netconf.Error{Kind: netconf.ErrInvalid, Err: errors.New("the device is there twice")}
		case w.network.IsZero() == (w.ref == nad.Ref{}):
			err = &netconf.Error{Kind: netconf.ErrInvalid, Err: errors.New("want a network or the name of a definition, and not both")}
		case w.network.IsZero():
			_, err = c.policy.Decide(c.pod.Namespace, w.ref, w.use)
		}
		if err == nil {
			err = w.checkInterface()
		}
		if err != nil {
			return nil, c.about(w, err)
		}
		all[i] = w
	}
	return all, nil
}
