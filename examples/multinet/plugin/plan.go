package plugin

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
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

// attachments returns what an ADD attaches, in order. An interface has no name yet
// unless the pod or a claim names it.
func (c *config) attachments(ctx context.Context) ([]delegate.Attachment, error) {
	annotations, err := c.annotations(ctx)
	if err != nil {
		return nil, err
	}
	choices, err := c.choices(ctx, annotations)
	if err != nil {
		return nil, err
	}
	c.warnOfRepeated("the configuration", c.call.Config)
	c.warnOfRepeated("annotation "+nad.NetworksAnnotation, []byte(annotations[nad.NetworksAnnotation]))
	if err := c.findAll(ctx, choices[:1]); err != nil {
		return nil, err
	}
	c.takeVersion(choices[0].network)
	if err := c.findAll(ctx, choices[1:]); err != nil {
		return nil, err
	}
	own := func(k scratch.Key, _ delegate.Attached) bool { return k == c.call.Key() } // ADD removes what is left of it
	if err := c.findDevices(ctx, choices, own); err != nil {
		return nil, err
	}
	as := make([]delegate.Attachment, len(choices))
	args, cniArgs := c.RuntimeConfig, c.call.Args // for the primary
	for i, ch := range choices {
		c.warnOfRepeated("NAD "+ch.definition.String(), []byte(ch.definition.Config))
		if as[i], err = c.attachment(ch, args, cniArgs); err != nil {
			return nil, c.about(ch, err)
		}
		as[i].Origin = ch.origin(annotations[nad.SourceAnnotation])
		if i == 0 {
			args, cniArgs = plugin.Shared(args), plugin.SharedArgs(cniArgs)
		}
	}
	as[0].IfName = "" // CNI_IFNAME
	return as, c.withRoutes(choices, as)
}

// warnOfRepeated warns of a key that stands twice with one value: other programs may refuse it.
func (c *config) warnOfRepeated(where string, text []byte) {
	if key := netconf.Repeated(text); key != "" {
		c.complain(fmt.Errorf("%s: key %q is given twice, with one value: remove one", where, key))
	}
}

// takeVersion gives a configuration without a cniVersion that of its first network, as users of Multus
// expect: in version 0.1.0 the result would lose its interfaces.
func (c *config) takeVersion(first netconf.Network) {
	given := ""
	if _ = c.call.Value("cniVersion", &given); given == "" { // a mistake fails the ADD
		c.call.CNIVersion = first.CNIVersion()
	}
}

// choices returns the networks of the container, in order: the primary, the default
// networks, those that the pod selects, those of its claims, and the auxiliary chain. If
// the pod asks for a network that it may not have, choices fails. Nothing has been looked
// up then, so that the pod does not learn what exists.
func (c *config) choices(ctx context.Context, annotations map[string]string) ([]choice, error) {
	claimed, err := c.claimed(ctx) // first: its claims are told if anything else fails
	if err != nil {
		return nil, err
	}
	primary, selected, err := c.asked(annotations)
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
	attach, err := c.policy.Decide(c.pod.Namespace, nad.Ref{}, nad.UseDefault)
	if err != nil {
		return nil, err
	}
	if primary != nil {
		standing[0] = *primary
	}
	if !attach {
		standing = standing[:1]
	}
	return slices.Concat(standing, selected, claimed, chain), nil
}

// attachment returns the attachment to ch, which has been found. args are the capability
// arguments of the runtime and cniArgs its CNI_ARGS, which those of a selection replace. Only
// the primary network has args that none of its plugins declares: they are for networks to
// come, and the annotations of a pod are among them.
func (c *config) attachment(ch choice, args map[string]json.RawMessage, cniArgs string) (delegate.Attachment, error) {
	a := c.call.Attachment(ch.network)
	if ch.use != nad.UseCluster && ch.use != nad.UsePodDefault {
		args = declared(ch.network, args)
	}
	a.IfName, a.Args, a.CapabilityArgs = ch.ifName, cniArgs, args
	if ch.ofPod() {
		s := ch.selection
		asked := s.CapabilityArgs()
		if ch.device != "" {
			s.DeviceID = "" // is served
		}
		var err error
		if a.Network, a.Args, err = withSelection(ch.network, s, cniArgs, *c.LegacyArgs); err != nil {
			return a, err
		}
		a.CapabilityArgs = make(map[string]json.RawMessage)
		maps.Copy(a.CapabilityArgs, args)
		maps.Copy(a.CapabilityArgs, asked)
	}
	return device.Give(a, ch.device)
}

// withSelection returns n and the CNI_ARGS with what s asks for. It fails if no plugin serves
// that, unless legacy says that plugins read addresses from CNI_ARGS.
func withSelection(n netconf.Network, s netconf.Selection, args string, legacy bool) (netconf.Network, string, error) {
	if legacy {
		args = s.LegacyArgs(args)
		s.IPs, s.MAC = nil, ""
	}
	err := s.ServedBy(n)
	if e := (*netconf.Error)(nil); errors.As(err, &e) && (e.Key == "mac" || e.Key == "ips") {
		err = fmt.Errorf(`%w; for plugins that read it in CNI_ARGS set "legacyArgs":true in the configuration of multinet`, err)
	}
	if edits := s.Edits(); err == nil && edits != nil {
		n, err = n.EditPlugins(edits...)
	}
	return n, args, err
}

// declared returns those of args that a plugin of n declares.
func declared(n netconf.Network, args map[string]json.RawMessage) map[string]json.RawMessage {
	declared, kept := n.Capabilities(), maps.Clone(args)
	maps.DeleteFunc(kept, func(name string, _ json.RawMessage) bool { return !slices.Contains(declared, name) })
	return kept
}
