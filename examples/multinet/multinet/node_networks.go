package multinet

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// standing returns the networks that the configuration wants: the primary, which is the
// clusterNetwork or the first delegate, and then the defaultNetworks or the other
// delegates. As in Multus, a clusterNetwork replaces all delegates.
func (c *config) standing() ([]wanted, error) {
	var all []wanted
	for i, n := range c.Delegates {
		var e *netconf.Error
		whole, err := c.call.Complete(n)
		if errors.As(err, &e) {
			return nil, c.call.Invalid(fmt.Sprintf("delegates[%d]", i), e.Err)
		}
		all = append(all, wanted{use: nad.Default, key: "delegates", network: whole})
	}
	if c.ClusterNetwork != "" {
		all = []wanted{{key: "clusterNetwork", name: c.ClusterNetwork}}
	}
	switch {
	case len(all) > 0:
	case c.call.Command == delegate.CommandGC: // perhaps they could not be decoded
		return nil, nil
	default:
		return nil, c.call.Invalid("delegates", errors.New("there is neither a delegate nor a clusterNetwork"))
	}
	if len(c.DefaultNetworks) > 0 {
		all = all[:1]
	}
	for _, name := range c.DefaultNetworks {
		all = append(all, wanted{use: nad.Default, key: "defaultNetworks", name: name})
	}
	all[0].use = nad.Cluster
	return all, nil
}

// chain returns the auxiliary chain: one more network, whose plugins are those of the
// files in the directory of its name, and receive an empty result to begin with. The
// directory is in confDir or, as in Multus, beside the file clusterNetwork. Without such
// files chain returns nothing.
func (c *config) chain() ([]wanted, error) {
	if c.AuxiliaryCNIChainName == "" {
		return nil, nil
	}
	dirs := []string{c.ConfDir}
	if filepath.IsAbs(c.ClusterNetwork) {
		dirs = append(dirs, filepath.Dir(c.ClusterNetwork))
	}
	w := wanted{use: nad.Default, key: "auxiliaryCNIChainName", name: c.AuxiliaryCNIChainName}
	for _, dir := range dirs {
		n, err := netconf.LoadChain(c.call.Root.Dir(dir), w.name)
		if errors.Is(err, netconf.ErrNotFound) {
			continue
		}
		if err == nil {
			n, err = c.call.Complete(n)
		}
		if err == nil {
			w.network, err = n.EditPlugins(netconf.Set("prevResult", map[string]string{"cniVersion": n.CNIVersion()}))
		}
		if err != nil {
			return nil, c.about(w, fmt.Errorf("%s: %w", dir, err))
		}
		return []wanted{w}, nil
	}
	return nil, nil
}
