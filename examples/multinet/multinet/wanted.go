package multinet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/device"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

// A wanted network is one that a container is to be attached to.
type wanted struct {
	use nad.Use

	// The configuration wants a network that it defines, or names by a key.
	network   netconf.Network
	key, name string

	// A pod wants the network that it selects. The ref is that of the definition, or
	// zero outside of Kubernetes, where networks are files.
	selection netconf.Selection
	ref       nad.Ref

	// A ResourceClaim wants a network that it has itself, or the definition ref.
	claim nad.Claim

	// The interface that it is to be attached to. Empty means any.
	ifName string

	// What it is found to be: network, of a definition unless that is zero, with a device
	// unless that is empty.
	definition nad.Definition
	device     string
}

// An attachment is one to be made.
type attachment struct {
	delegate.Attachment
	selection netconf.Selection // zero unless a pod has selected the network
}

// attachments returns what an ADD attaches, in order. An interface has no name yet
// unless the pod or a claim names it.
func (c *config) attachments(ctx context.Context) ([]attachment, error) {
	annotations, err := c.annotations(ctx)
	if err != nil {
		return nil, err
	}
	claims, err := c.claims(ctx)
	if err != nil {
		return nil, err
	}
	wanted, err := c.wanted(annotations, claims)
	if err != nil {
		return nil, err
	}
	own := func(k scratch.Key, _ delegate.Attached) bool { return k == c.call.Key() } // ADD removes what is left of it
	if err := c.findAll(ctx, wanted, own); err != nil {
		return nil, err
	}
	as := make([]attachment, len(wanted))
	args, cniArgs := c.RuntimeConfig, c.call.Args // for the primary
	for i, w := range wanted {
		if as[i], err = c.attachment(w, args, cniArgs); err != nil {
			return nil, c.about(w, err)
		}
		as[i].Origin = w.origin(annotations[nad.SourceAnnotation])
		if i == 0 {
			args, cniArgs = plugin.Shared(args), plugin.SharedArgs(cniArgs)
		}
	}
	as[0].IfName = "" // CNI_IFNAME
	return as, nil
}

// wanted returns the networks of the container, in order: the primary, the default
// networks, those that the pod selects, those of its claims, and the auxiliary chain. If
// the pod asks for a network that it may not have, wanted fails. Nothing has been looked
// up then, so that the pod does not learn what exists.
func (c *config) wanted(annotations map[string]string, claims []Claimed) ([]wanted, error) {
	primary, selected, err := c.asked(annotations)
	if err != nil {
		return nil, err
	}
	claimed, err := c.claimed(claims)
	if err != nil {
		return nil, err
	}
	standing, err := c.standing()
	if err != nil {
		return nil, err
	}
	chain, err := c.chain()
	if err != nil {
		return nil, err
	}
	if primary != nil {
		standing[0] = *primary
	}
	attach, err := c.policy.Decide(c.pod.Namespace, nad.Ref{}, nad.Default)
	if err != nil {
		return nil, err
	}
	if !attach {
		standing = standing[:1]
	}
	return slices.Concat(standing, selected, claimed, chain), nil
}

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

// checkInterface fails if no interface can have the name that a user gives to that of w.
func (w wanted) checkInterface() error {
	if w.ifName == "" {
		return nil
	}
	if err := ifname.Validate(w.ifName); err != nil {
		return &netconf.Error{Kind: netconf.ErrInvalid, Network: w.selection.Name, Key: "interface", Err: err}
	}
	return nil
}

// allowDevice fails if the pod chooses a device of the node for a network that users
// define, and may not: a plugin such as host-device would take any. With a resource it can
// only be one that is allocated to the pod. With a file of the node it was the administrator
// who declared the capability deviceID.
func (c *config) allowDevice(w wanted) error {
	if w.selection.DeviceID == "" || w.definition.Ref == (nad.Ref{}) || w.definition.Resource != "" || c.AllowDeviceID {
		return nil
	}
	why := errors.New("pods may not choose a device of the node: leave it out, or set allowDeviceID in the configuration of multinet")
	return &netconf.Error{Kind: netconf.ErrInvalid, Network: w.selection.Name, Key: "deviceID", Err: why}
}

// inKubernetes reports whether the container is one of a pod.
func (c *config) inKubernetes() bool { return c.pod.Namespace != "" }

// attachment returns the attachment to w, which has been found. args are the capability
// arguments of the runtime and cniArgs its CNI_ARGS, which those of a selection replace. Only
// the primary network has args that none of its plugins declares: they are for networks to
// come, and the annotations of a pod are among them.
func (c *config) attachment(w wanted, args map[string]json.RawMessage, cniArgs string) (attachment, error) {
	a := attachment{Attachment: c.call.Attachment(w.network), selection: w.selection}
	if w.use != nad.Cluster && w.use != nad.PodDefault {
		args = declared(w.network, args)
	}
	a.IfName, a.Args, a.CapabilityArgs = w.ifName, cniArgs, args
	if w.ofPod() {
		s := w.selection
		asked := s.CapabilityArgs()
		if *c.LegacyArgs {
			a.Args = s.LegacyArgs(a.Args)
			s.IPs, s.MAC = nil, "" // are served
		}
		if w.device != "" {
			s.DeviceID = "" // is served
		}
		if err := s.ServedBy(w.network); err != nil {
			return a, err
		}
		if edits := s.Edits(); edits != nil {
			var err error
			if a.Network, err = a.Network.EditPlugins(edits...); err != nil {
				return a, err
			}
		}
		a.CapabilityArgs = make(map[string]json.RawMessage)
		maps.Copy(a.CapabilityArgs, args)
		maps.Copy(a.CapabilityArgs, asked)
	}
	var err error
	a.Attachment, err = device.Give(a.Attachment, w.device)
	return a, err
}

// declared returns those of args that a plugin of n declares.
func declared(n netconf.Network, args map[string]json.RawMessage) map[string]json.RawMessage {
	declared := n.Capabilities()
	if declared == nil {
		return nil
	}
	kept := maps.Clone(args)
	maps.DeleteFunc(kept, func(name string, _ json.RawMessage) bool { return !slices.Contains(declared, name) })
	return kept
}

// ofPod reports whether a pod selects the network.
func (w wanted) ofPod() bool { return w.selection.Name != "" }

// ofUser reports whether a user says which network it is, in a pod or in a claim.
func (w wanted) ofUser() bool { return w.ofPod() || w.use == nad.Claimed }

// origin returns what the record says about why the container is attached.
func (w wanted) origin(podSource string) json.RawMessage {
	d := w.definition
	o := nad.Origin{Use: w.use, Definition: d.Ref, UID: d.UID, Version: d.Version, Claim: w.claim, PodSource: podSource}
	if d.Resource != "" {
		o.Resource, o.Device = d.Resource, w.device
	}
	if w.ofPod() {
		o.Selection, _ = json.Marshal(w.selection) // cannot fail: it was parsed
	}
	return o.JSON()
}
