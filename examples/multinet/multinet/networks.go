package multinet

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
)

// podAnnotations is the capability with which containerd and CRI-O pass on all
// annotations of a pod. networksAnnotation is the one that selects networks.
const (
	podAnnotations     = "io.kubernetes.cri.pod-annotations"
	networksAnnotation = "k8s.v1.cni.cncf.io/networks"
)

// A wanted network is one to attach the container to.
type wanted struct {
	delegate.Attachment              // without an IfName unless the pod selects one
	defaultRoute        []netip.Addr // gateways of its default routes
}

// wanted returns all networks for an ADD: first those of every container, then
// those that the pod selects.
func (c *config) wanted() ([]wanted, error) {
	nets, err := c.standing()
	if err != nil {
		return nil, err
	}
	as, err := c.call.Attachments(nets...)
	if err != nil {
		return nil, err
	}
	all := make([]wanted, len(as))
	for i, a := range as {
		all[i].Attachment = a
	}
	selections, err := c.selections()
	if err != nil {
		return nil, err
	}
	for _, s := range selections {
		w, err := c.selected(s)
		if err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	return all, nil
}

// standing returns the networks that every container is attached to: the
// clusterNetwork or the first delegate, and then the defaultNetworks or the other
// delegates. As in Multus, a clusterNetwork replaces all delegates.
func (c *config) standing() ([]netconf.Network, error) {
	for i, n := range c.Delegates {
		if n.IsZero() { // null
			return nil, c.call.Invalid(fmt.Sprintf("delegates[%d]", i), errors.New("null, want an object"))
		}
	}
	first, others := c.Delegates[:min(1, len(c.Delegates))], c.Delegates[min(1, len(c.Delegates)):]
	var err error
	if c.ClusterNetwork != "" {
		if first, err = c.loadAll("clusterNetwork", c.ClusterNetwork); err != nil {
			return nil, err
		}
		others = nil
	}
	if len(first) == 0 {
		return nil, c.call.Invalid("delegates", errors.New("there is neither a delegate nor a clusterNetwork"))
	}
	if len(c.DefaultNetworks) > 0 {
		if others, err = c.loadAll("defaultNetworks", c.DefaultNetworks...); err != nil {
			return nil, err
		}
	}
	nets := slices.Concat(first, others)
	for i := range nets {
		if nets[i], err = c.call.Complete(nets[i]); err != nil {
			return nil, err
		}
	}
	return nets, nil
}

// loadAll finds networks by their name in confDir, or by an absolute path.
func (c *config) loadAll(key string, names ...string) ([]netconf.Network, error) {
	var nets []netconf.Network
	for _, name := range names {
		load := c.load
		if filepath.IsAbs(name) {
			load = c.loadPath
		}
		n, err := load(name)
		if err != nil {
			return nil, fmt.Errorf("network %q: %s %q: %w", c.call.Name, key, name, err)
		}
		nets = append(nets, n)
	}
	return nets, nil
}

// load finds a network in confDir by name. A name is never used as a path.
func (c *config) load(name string) (netconf.Network, error) {
	n, err := netconf.Load(c.call.Root.Dir(c.ConfDir), name)
	if err != nil {
		return n, fmt.Errorf("%s: %w", c.ConfDir, err)
	}
	return n, nil
}

// withArgs returns n with args in "args.cni" of each plugin.
func withArgs(n netconf.Network, args map[string]json.RawMessage) (netconf.Network, error) {
	if len(args) == 0 {
		return n, nil
	}
	return n.EditPlugins(netconf.In("args", netconf.In("cni", sets(args)...)))
}

// selections returns the networks that the pod's annotation selects.
func (c *config) selections() ([]netconf.Selection, error) {
	var all map[string]json.RawMessage
	var text string
	key := "runtimeConfig." + podAnnotations
	var err error
	if annotations, ok := c.RuntimeConfig[podAnnotations]; ok {
		err = json.Unmarshal(annotations, &all)
	}
	if selected, ok := all[networksAnnotation]; err == nil && ok {
		key += "." + networksAnnotation
		err = json.Unmarshal(selected, &text)
	}
	if err != nil {
		return nil, &netconf.Error{Kind: netconf.ErrDecode, Network: c.call.Name, Key: key, Err: err}
	}
	selections, err := netconf.ParseSelection(text)
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", networksAnnotation, err)
	}
	return selections, nil
}

// selected returns the network that s selects, with the arguments in s.
func (c *config) selected(s netconf.Selection) (wanted, error) {
	n, err := c.load(s.Name)
	if err == nil {
		n, err = c.call.Complete(n)
	}
	if err == nil {
		err = s.ServedBy(n)
	}
	if err == nil {
		n, err = withArgs(n, s.CNIArgs)
	}
	if err != nil {
		return wanted{}, fmt.Errorf("selected network %q: %w", s.Name, err)
	}
	a := c.call.Attachment(n)
	a.IfName, a.CapabilityArgs = s.Interface, make(map[string]json.RawMessage)
	maps.Copy(a.CapabilityArgs, plugin.Shared(c.RuntimeConfig))
	maps.Copy(a.CapabilityArgs, s.CapabilityArgs())
	return wanted{a, s.DefaultRoute}, nil
}

func sets(keys map[string]json.RawMessage) []netconf.Edit {
	var edits []netconf.Edit
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		edits = append(edits, netconf.Set(key, keys[key]))
	}
	return edits
}
