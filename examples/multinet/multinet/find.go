package multinet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// A finder returns the network that w wants, see [config.find].
type finder func(ctx context.Context, w wanted) (netconf.Network, nad.Definition, error)

// findOnce returns a finder that finds equal selections once. Their networks share memory.
func (c *config) findOnce() finder {
	type same struct {
		use  nad.Use
		ref  nad.Ref
		name string
	}
	type found struct {
		network    netconf.Network
		definition nad.Definition
	}
	all := make(map[same]found)
	return func(ctx context.Context, w wanted) (netconf.Network, nad.Definition, error) {
		if !w.ofPod() {
			return c.find(ctx, w)
		}
		is := same{w.use, w.ref, w.selection.Name}
		f, ok := all[is]
		if !ok {
			var err error
			if f.network, f.definition, err = c.find(ctx, w); err != nil {
				return f.network, f.definition, err
			}
			all[is] = f
		}
		return f.network, f.definition, nil
	}
}

// find returns the network that w wants, with a name and a version, and the definition
// of which it is made, if it is made of one.
func (c *config) find(ctx context.Context, w wanted) (n netconf.Network, d nad.Definition, err error) {
	switch {
	case w.use == nad.Claimed:
		n, d, err = c.findClaimed(ctx, w)
	case !w.network.IsZero():
		n = w.network
	case w.ofPod():
		n, d, err = c.findSelected(ctx, w)
	case strings.Contains(w.name, "/"):
		n, err = c.atPath(w.name)
	default:
		n, d, err = c.findStanding(ctx, w)
	}
	if err == nil {
		n, err = c.call.Complete(n)
	}
	if err == nil && d.Ref == (nad.Ref{}) && (w.ofUser() || len(c.AllowedTypes.Standing) > 0) {
		err = c.rules(w).Check(n)
	}
	return n, d, err
}

// findSelected finds a network that a pod selects. Without a cluster and without
// isolation it may also be a file in confDir, which has no namespace.
func (c *config) findSelected(ctx context.Context, w wanted) (netconf.Network, nad.Definition, error) {
	if !c.inKubernetes() {
		n, err := c.inConfDir(w.selection.Name)
		return n, nad.Definition{}, err
	}
	d, err := c.definition(ctx, w.ref, w.use)
	switch {
	case err == nil:
		n, err := d.Network(c.rules(w))
		return n, d, err
	case !errors.Is(err, netconf.ErrNotFound) || c.cluster.Definition != nil || c.policy.Isolation:
		return netconf.Network{}, d, err
	}
	n, fileErr := c.inConfDir(w.selection.Name)
	if fileErr != nil {
		fileErr = fmt.Errorf("%w; %w", fileErr, err)
	}
	return n, nad.Definition{}, fileErr
}

// findStanding finds a network that the configuration names: a definition in
// multusNamespace or, if there certainly is none, a file in confDir. Any other error is
// final: the file would be another network.
func (c *config) findStanding(ctx context.Context, w wanted) (netconf.Network, nad.Definition, error) {
	if r, ok := c.standingRef(w); ok {
		d, err := c.definition(ctx, r, w.use)
		if err == nil {
			n, err := d.Network(c.rules(w))
			return n, d, err
		}
		if !errors.Is(err, netconf.ErrNotFound) {
			return netconf.Network{}, d, err
		}
	}
	n, err := c.inConfDir(w.name)
	return n, nad.Definition{}, err
}

// standingRef returns the definition that a network of the configuration may have.
// Definitions have fewer names than files.
func (c *config) standingRef(w wanted) (r nad.Ref, ok bool) {
	if !w.network.IsZero() || strings.Contains(w.name, "/") {
		return r, false
	}
	r, err := c.policy.Ref("", netconf.Selection{Name: w.name}, w.use)
	return r, err == nil
}

// definition returns the definition r of the cluster, or of the files in nadDir.
func (c *config) definition(ctx context.Context, r nad.Ref, use nad.Use) (nad.Definition, error) {
	if c.cluster.Definition != nil {
		return c.cluster.Definition(ctx, r, use)
	}
	if r.Namespace == c.AuxiliaryCNIChainName { // whose directory may be in nadDir
		return nad.Definition{}, &nad.Error{Ref: r, Err: &netconf.Error{Kind: netconf.ErrNotFound, Err: errors.New("auxiliaryCNIChainName is no namespace")}}
	}
	d, err := nad.Load(c.call.Root.Dir(c.NADDir), r)
	if err != nil {
		return d, fmt.Errorf("%s: %w", c.NADDir, err)
	}
	return d, nil
}

// rules returns what holds for the plugins of w. Definitions are written by users.
func (c *config) rules(w wanted) nad.Rules {
	r := nad.Rules{
		ConfDir: c.call.Root.Dir(c.ConfDir), CNIVersion: c.call.CNIVersion,
		Own: append(OwnTypes(), c.call.Type), Allowed: c.AllowedTypes.Standing,
	}
	if w.ofUser() {
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

// inConfDir finds a network in confDir by name. A name is never used as a path.
func (c *config) inConfDir(name string) (netconf.Network, error) {
	n, err := netconf.Load(c.call.Root.Dir(c.ConfDir), name)
	if err != nil {
		return n, fmt.Errorf("%s: %w", c.ConfDir, err)
	}
	return n, nil
}

// atPath reads the network in the file at path. If path is a directory, it reads the
// first network in it, in the order of runtimes, that is not multinet's own.
func (c *config) atPath(path string) (netconf.Network, error) {
	if !filepath.IsAbs(path) {
		return netconf.Network{}, &netconf.Error{Kind: netconf.ErrInvalid, File: path, Err: errors.New("neither a name nor an absolute path")}
	}
	dir := c.call.Root.Dir(path)
	if info, err := fs.Stat(dir, "."); err != nil || !info.IsDir() {
		return netconf.LoadFileFS(c.call.Root.Dir(filepath.Dir(path)), filepath.Base(path))
	}
	var errs []error
	for f, err := range netconf.Files(dir, nil) {
		switch {
		case err != nil:
			errs = append(errs, err)
		case !slices.ContainsFunc(f.Network.Plugins(), func(p netconf.Plugin) bool { return p.Type() == c.call.Type }):
			return f.Network, nil
		}
	}
	return netconf.Network{}, &netconf.Error{Kind: netconf.ErrNotFound, File: path, Err: errors.Join(errs...)}
}
