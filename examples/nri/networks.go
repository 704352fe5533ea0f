package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/containerd/nri/pkg/api"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// podInterface is the interface that the runtime's CNI plugin has made.
const podInterface = "eth0"

var errRoute = errors.New("default-route is not supported")

// selections returns the networks that a pod selects.
func (o *service) selections(s *api.PodSandbox) ([]netconf.Selection, error) {
	all, err := netconf.ParseSelectionN(s.GetAnnotations()[nad.NetworksAnnotation], o.conf.MaxSelections)
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", nad.NetworksAnnotation, err)
	}
	return all, nil
}

// asks reports whether a pod selects networks or has claims, also if the claims cannot be used.
func (o *service) asks(ctx context.Context, s *api.PodSandbox) (bool, error) {
	selected, err := o.selections(s)
	if err != nil {
		return false, err
	}
	claims, err := o.driver.Claims(ctx, podIn(s))
	return err != nil || len(selected)+len(claims) > 0, err
}

// wanted returns the attachments of a pod: for the networks that it selects, and then for
// those of its claims. They have an IfName if the pod or the claim has one.
func (o *service) wanted(ctx context.Context, s *api.PodSandbox, netns string) ([]delegate.Attachment, error) {
	selections, err := o.selections(s)
	args, argsErr := cniArgs(s)
	if err := cmp.Or(err, argsErr); err != nil {
		return nil, err
	}
	pod := delegate.Attachment{ContainerID: s.GetId(), NetNS: netns, Args: args}
	var wanted []delegate.Attachment
	confDir := &netconf.Dir{FS: os.DirFS(o.conf.ConfDir)}
	for _, selection := range selections {
		a, err := o.selected(confDir, selection, pod)
		if err != nil {
			return nil, fmt.Errorf("selected network %q: %w", selection.Name, err)
		}
		wanted = append(wanted, a)
	}
	if at, ok := ctx.Value(progressKey{}).(*progress); ok { // what is looked up leaves time for the plugins
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, at.by)
		defer cancel()
	}
	claims, err := o.driver.Claims(ctx, podIn(s))
	if err != nil {
		return nil, err
	}
	for _, claim := range claims {
		for _, n := range claim.Networks {
			a, err := o.claimed(ctx, n, pod)
			if err != nil {
				return nil, fmt.Errorf("%v: %w", n.Claim, err)
			}
			wanted = append(wanted, a)
		}
	}
	return wanted, nil
}

// selected returns the attachment of a pod for a selection of a network in confDir.
func (o *service) selected(confDir *netconf.Dir, selection netconf.Selection, a delegate.Attachment) (delegate.Attachment, error) {
	if len(selection.DefaultRoute) > 0 {
		return a, &netconf.Error{Kind: netconf.ErrInvalid, Key: "default-route", Err: errRoute}
	}
	n, err := netconf.Load(confDir, selection.Name)
	if err != nil {
		return a, fmt.Errorf("%s: %w", o.conf.ConfDir, err)
	}
	if err := selection.ServedBy(n); err != nil {
		return a, err
	}
	a.Network, err = n.EditPlugins(selection.Edits()...)
	a.IfName, a.CapabilityArgs = selection.Interface, selection.CapabilityArgs()
	a.Origin = nad.Origin{Use: nad.UseSelected}.JSON()
	return a, err
}

// name gives each attachment an interface name that is not in use.
func name(wanted []delegate.Attachment, taken []string) ([]delegate.Attachment, error) {
	// The first interface of the scheme is the pod's own, so that the others are
	// net1, net2 and so on.
	taken = slices.DeleteFunc(taken, func(name string) bool { return name == podInterface })
	asked := []string{""}
	for _, a := range wanted {
		asked = append(asked, a.IfName)
	}
	chosen, err := ifname.Scheme{Primary: podInterface, Taken: taken}.Plan(asked...)
	if err != nil {
		return nil, err
	}
	plan := slices.Clone(wanted)
	for i := range plan {
		plan[i].IfName = chosen[i+1]
	}
	return plan, nil
}
