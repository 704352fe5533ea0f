package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// findAll finds the networks of all choices. It finds equal selections once; their networks share
// memory. It fails if the pod may not have one of them.
func (c *config) findAll(ctx context.Context, all []choice) error {
	found := make(map[[3]string]choice)
	for i := range all {
		ch := &all[i]
		is := [3]string{string(ch.use), ch.ref.String(), ch.selection.Name}
		var err error
		if same, ok := found[is]; ok && ch.ofPod() {
			ch.network, ch.definition = same.network, same.definition
		} else {
			ch.network, ch.definition, err = c.find(ctx, *ch)
		}
		if err != nil {
			return c.about(*ch, err)
		}
		found[is] = *ch
	}
	return nil
}

// find returns the network that ch wants, with a name and a version, and the definition
// of which it is made, if it is made of one.
//
// A name in the configuration is that of a definition in multusNamespace or, if there
// certainly is none, of a file in confDir. Any other error is final: the file would be
// another network. Without a cluster and without isolation pods may also select a file, which
// has no namespace. Claims may not.
func (c *config) find(ctx context.Context, ch choice) (n netconf.Network, d nad.Definition, err error) {
	name := cmp.Or(ch.selection.Name, ch.name)
	switch r, named := c.ref(ch); {
	case !ch.network.IsZero():
		n = ch.network
	case strings.Contains(ch.name, "/"):
		n, err = c.atPath(ch.name)
	case !named:
		n, err = c.inConfDir(name)
	default:
		n, d, err = c.defined(ctx, r, ch)
		mayBeFile := !ch.ofUser() || ch.ofPod() && c.cluster.Definition == nil && !c.policy.Isolation
		if mayBeFile && errors.Is(err, netconf.ErrNotFound) {
			notDefined := err
			if n, err = c.inConfDir(name); err != nil && ch.ofPod() {
				err = fmt.Errorf("%w; %w", err, notDefined)
			}
		}
	}
	if err == nil {
		n, err = c.call.Complete(n)
	}
	if err == nil && ch.key == chainKey {
		n, err = n.EditPlugins(netconf.Set("prevResult", map[string]string{"cniVersion": n.CNIVersion()}))
	}
	if errors.Is(err, netconf.ErrNotFound) && !ch.ofUser() {
		err = c.notFound(name, err)
	}
	if err == nil && ch.use == nad.UseClaimed {
		err = n.Runnable()
	}
	if err == nil && d.Ref == (nad.Ref{}) && (ch.ofUser() || len(c.AllowedTypes.Standing) > 0) {
		err = c.rules(ch).Check(n)
	}
	return n, d, err
}

// ref returns the definition that ch is of, or may be of: definitions have fewer names than
// files.
func (c *config) ref(ch choice) (r nad.Ref, ok bool) {
	switch {
	case ch.ofUser():
		return ch.ref, ch.ref != (nad.Ref{})
	case !ch.network.IsZero() || strings.Contains(ch.name, "/"):
		return r, false
	}
	r, err := c.policy.Ref("", netconf.Selection{Name: ch.name}, ch.use)
	return r, err == nil
}

// defined returns the network of the definition r.
func (c *config) defined(ctx context.Context, r nad.Ref, ch choice) (n netconf.Network, d nad.Definition, err error) {
	if d, err = c.definition(ctx, r, ch.use); err == nil {
		n, err = d.Network(c.rules(ch))
	}
	if err != nil {
		return n, nad.Definition{}, err
	}
	return n, d, nil
}

// definition returns the definition r of the cluster, or of the files in nadDir.
func (c *config) definition(ctx context.Context, r nad.Ref, use nad.Use) (nad.Definition, error) {
	if c.cluster.Definition != nil {
		return c.cluster.Definition(ctx, r, use)
	}
	if r.Namespace == c.AuxiliaryCNIChainName { // whose directory may be in nadDir
		return nad.Definition{}, &nad.Error{Ref: r, Err: &netconf.Error{Kind: netconf.ErrNotFound, Err: errors.New("auxiliaryCNIChainName is no namespace")}}
	}
	d, err := nad.Load(c.call.System.Root.Dir(c.NADDir), r)
	if err != nil {
		return d, fmt.Errorf("%s: %w", c.NADDir, err)
	}
	return d, nil
}

// rules returns what holds for the plugins of ch. Definitions are written by users.
func (c *config) rules(ch choice) nad.Rules {
	r := nad.Rules{
		ConfDir: c.confDir, CNIVersion: c.call.CNIVersion,
		Own: append(OwnTypes(), c.call.Type), Allowed: c.AllowedTypes.Standing,
	}
	if ch.ofUser() {
		r.Allowed = c.AllowedTypes.NAD
		if c.policy.Isolation {
			r.ConfDir = nil
		}
	}
	return r
}

// OwnTypes returns the types of multinet and Multus. multinet runs none of them for a
// definition, and is published in front of none: both would attach what a pod selects, or
// each would take the other for the cluster network. And a definition could give Multus
// any configuration, without the rules of this one.
func OwnTypes() []string { return []string{"multinet", "multinet-shim", "multus", "multus-shim"} }

// inConfDir finds a network in confDir by name, and completes it. A name is never used as a
// path.
func (c *config) inConfDir(name string) (netconf.Network, error) {
	n, err := netconf.Load(c.confDir, name)
	if err == nil {
		n, err = c.call.Complete(n)
	}
	if err != nil {
		return n, fmt.Errorf("%s: %w", c.ConfDir, err)
	}
	return n, nil
}

// notFound adds to err, because of which there is no network of that name, the path of a file of the
// runtime that is called so.
func (c *config) notFound(name string, err error) error {
	for _, dir := range c.call.RuntimeConfDirs() {
		if info, e := fs.Stat(c.call.System.Root.Dir(dir), name); e == nil && info.Mode().IsRegular() {
			return fmt.Errorf("%w; there is the file %s: use its path", err, filepath.Join(dir, name))
		}
	}
	return err
}

// atPath reads the network in the file at path. If path is a directory, it reads the
// first network in it, in the order of runtimes, that is neither multinet's own nor Multus's.
func (c *config) atPath(path string) (netconf.Network, error) {
	if !filepath.IsAbs(path) {
		return netconf.Network{}, &netconf.Error{Kind: netconf.ErrInvalid, File: path, Err: errors.New("neither a name nor an absolute path")}
	}
	dir := c.call.System.Root.Dir(path)
	if info, err := fs.Stat(dir, "."); err != nil || !info.IsDir() {
		return netconf.LoadFile(c.call.System.Root.Dir(filepath.Dir(path)), filepath.Base(path))
	}
	var errs []error
	own := append(OwnTypes(), c.call.Type)
	for f, err := range netconf.Files(dir) {
		switch {
		case err != nil:
			errs = append(errs, err)
		case !slices.ContainsFunc(f.Network.Plugins(), func(p netconf.Plugin) bool { return slices.Contains(own, p.Type()) }):
			return f.Network, nil
		}
	}
	return netconf.Network{}, &netconf.Error{Kind: netconf.ErrNotFound, File: path, Err: errors.Join(errs...)}
}

// standing returns the networks that the configuration wants: the primary, which is the
// clusterNetwork or the first delegate, and then the defaultNetworks or the other
// delegates. As in Multus, a clusterNetwork replaces all delegates, whatever they are.
func (c *config) standing() ([]choice, error) {
	var all []choice
	if c.ClusterNetwork != "" {
		all, c.Delegates = []choice{{key: "clusterNetwork", name: c.ClusterNetwork}}, nil
	}
	for i, raw := range c.Delegates {
		var n netconf.Network
		err := n.UnmarshalJSON(raw)
		if err == nil {
			_, err = c.call.Complete(n)
		}
		if e := (*netconf.Error)(nil); errors.As(err, &e) {
			if c.call.Command == delegate.CommandGC {
				continue // the others are told
			}
			named := *e
			named.Network, named.Key = cmp.Or(e.Network, c.call.Name), strings.TrimSuffix(fmt.Sprintf("delegates[%d].%s", i, e.Key), ".")
			return nil, &named
		}
		all = append(all, choice{use: nad.UseDefault, key: "delegates", network: n})
	}
	switch {
	case len(all) > 0:
	case c.call.Command == delegate.CommandGC: // none could be decoded
		return nil, nil
	default:
		return nil, c.call.Invalid("delegates", errors.New("there is neither a delegate nor a clusterNetwork"))
	}
	if len(c.DefaultNetworks) > 0 {
		all = all[:1]
	}
	for _, name := range c.DefaultNetworks {
		all = append(all, choice{use: nad.UseDefault, key: "defaultNetworks", name: name})
	}
	all[0].use = nad.UseCluster
	return all, nil
}

// chainKey is the key of the auxiliary chain: one more network, whose plugins are those of the
// files in the directory of its name, and receive an empty result to begin with.
const chainKey = "auxiliaryCNIChainName"

// chain returns the auxiliary chain. Its directory is in confDir or, as in Multus, beside the file
// clusterNetwork. Without such files chain returns nothing.
func (c *config) chain() ([]choice, error) {
	if c.AuxiliaryCNIChainName == "" {
		return nil, nil
	}
	dirs := []string{c.ConfDir}
	if filepath.IsAbs(c.ClusterNetwork) {
		dirs = append(dirs, filepath.Dir(c.ClusterNetwork))
	}
	ch := choice{use: nad.UseDefault, key: chainKey, name: c.AuxiliaryCNIChainName}
	for _, dir := range dirs {
		var err error
		ch.network, err = netconf.LoadChain(c.call.System.Root.Dir(dir), ch.name)
		switch {
		case err == nil:
			return []choice{ch}, nil
		case !errors.Is(err, netconf.ErrNotFound):
			return nil, c.about(ch, fmt.Errorf("%s: %w", dir, err))
		}
	}
	return nil, nil
}
