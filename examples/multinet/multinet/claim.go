package multinet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

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
