package multinet

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
	"github.com/metacni/metacni/delegate/device"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

// findAll finds the networks of all that is wanted, and the devices that they need. It finds
// equal selections once; their networks share memory. It fails if the pod may not have one of
// them. Of what is attached to the container, others may have the devices of what is replaced.
func (c *config) findAll(ctx context.Context, all []wanted, replaced func(scratch.Key, delegate.Attached) bool, kept ...device.Device) error {
	type selection struct {
		use  nad.Use
		ref  nad.Ref
		name string
	}
	found := make(map[selection]wanted)
	for i := range all {
		w := &all[i]
		is := selection{w.use, w.ref, w.selection.Name}
		var err error
		if same, ok := found[is]; ok && w.ofPod() {
			w.network, w.definition = same.network, same.definition
		} else {
			w.network, w.definition, err = c.find(ctx, *w)
		}
		if err == nil {
			err = c.allowDevice(*w)
		}
		if err != nil {
			return c.about(*w, err)
		}
		found[is] = *w
	}
	return c.findDevices(ctx, all, replaced, kept)
}

// find returns the network that w wants, with a name and a version, and the definition
// of which it is made, if it is made of one.
//
// A name in the configuration is that of a definition in multusNamespace or, if there
// certainly is none, of a file in confDir. Any other error is final: the file would be
// another network. Without a cluster and without isolation pods may also select a file, which
// has no namespace. Claims may not.
func (c *config) find(ctx context.Context, w wanted) (n netconf.Network, d nad.Definition, err error) {
	name := cmp.Or(w.selection.Name, w.name)
	switch r, named := c.ref(w); {
	case !w.network.IsZero():
		n = w.network
	case strings.Contains(w.name, "/"):
		n, err = c.atPath(w.name)
	case !named:
		n, err = c.inConfDir(name)
	default:
		n, d, err = c.defined(ctx, r, w)
		mayBeFile := !w.ofUser() || w.ofPod() && c.cluster.Definition == nil && !c.policy.Isolation
		if mayBeFile && errors.Is(err, netconf.ErrNotFound) {
			notDefined := err
			if n, err = c.inConfDir(name); err != nil && w.ofPod() {
				err = fmt.Errorf("%w; %w", err, notDefined)
			}
		}
	}
	if err == nil {
		n, err = c.call.Complete(n)
	}
	if err == nil && w.use == nad.Claimed {
		err = n.Runnable()
	}
	if err == nil && d.Ref == (nad.Ref{}) && (w.ofUser() || len(c.AllowedTypes.Standing) > 0) {
		err = c.rules(w).Check(n)
	}
	return n, d, err
}

// ref returns the definition that w is of, or may be of: definitions have fewer names than
// files.
func (c *config) ref(w wanted) (r nad.Ref, ok bool) {
	switch {
	case w.ofUser():
		return w.ref, w.ref != (nad.Ref{})
	case !w.network.IsZero() || strings.Contains(w.name, "/"):
		return r, false
	}
	r, err := c.policy.Ref("", netconf.Selection{Name: w.name}, w.use)
	return r, err == nil
}

// defined returns the network of the definition r.
func (c *config) defined(ctx context.Context, r nad.Ref, w wanted) (n netconf.Network, d nad.Definition, err error) {
	if d, err = c.definition(ctx, r, w.use); err == nil {
		n, err = d.Network(c.rules(w))
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
