package nad

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/metacni/metacni/internal/bounds"
	"github.com/metacni/metacni/netconf"
)

// A Definition is what matters of a NetworkAttachmentDefinition.
type Definition struct {
	Ref

	UID     string // metadata.uid, if known
	Version string // metadata.resourceVersion, if known

	// Config is spec.config: a network configuration, or empty for that of a file
	// on the node. It is as the user wrote it, and not checked.
	Config string

	// Resource is the resource whose devices the attachments need, if they need
	// any: the value of [ResourceAnnotation].
	Resource string
}

// Parse parses the JSON of a NetworkAttachmentDefinition, as an API server gives it.
// It reads the keys that matter and ignores all others.
//
// It fails with [netconf.ErrDecode] where data is not a JSON object, has a key twice, or
// has a value of the wrong type, and with [netconf.ErrInvalid] where data is larger
// than 3 MiB, is another kind of object, or has no valid namespace and name. It
// does not look into spec.config.
func Parse(data []byte) (Definition, error) {
	if len(data) > bounds.Object {
		return Definition{}, &Error{Err: &netconf.Error{Kind: netconf.ErrInvalid, Err: bounds.Above(bounds.Object)}}
	}
	o, err := netconf.Decode[object](data)
	if err != nil {
		_ = json.Unmarshal(data, &o) // what can be read
	}
	d := Definition{
		Ref: Ref{Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}, UID: o.Metadata.UID, Version: o.Metadata.ResourceVersion,
		Config: o.Spec.Config, Resource: o.Metadata.Annotations[ResourceAnnotation],
	}
	unnamed := d.Validate()
	switch {
	case err != nil && unnamed != nil:
		return Definition{}, &Error{Err: err}
	case unnamed != nil:
		return Definition{}, unnamed
	case err != nil:
	case o.Kind != "" && o.Kind != "NetworkAttachmentDefinition":
		err = invalid("kind", fmt.Sprintf("%q, want NetworkAttachmentDefinition", o.Kind))
	case o.APIVersion != "" && !strings.HasPrefix(o.APIVersion, "k8s.cni.cncf.io/"):
		err = invalid("apiVersion", fmt.Sprintf("%q, want k8s.cni.cncf.io/v1", o.APIVersion))
	}
	if err != nil {
		return Definition{}, about(d.Ref, err)
	}
	return d, nil
}

// object is the part of a NetworkAttachmentDefinition that matters.
type object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name            string            `json:"name"`
		Namespace       string            `json:"namespace"`
		UID             string            `json:"uid"`
		ResourceVersion string            `json:"resourceVersion"`
		Annotations     map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		Config string `json:"config"`
	} `json:"spec"`
}

// Rules are those by which [Definition.Network] makes a network of a definition.
type Rules struct {
	// ConfDir has the configuration files of the node, for definitions without
	// Config. Nil refuses such definitions with [ErrForbidden].
	ConfDir fs.FS

	// CNIVersion is put into a network that has no version. Empty leaves it
	// without one.
	CNIVersion string

	// Own are the types of the calling plugin itself, and of meta-plugins in its
	// place, which no definition may have: it would call itself, or one that does
	// not know these rules.
	Own []string

	// Allowed are the types that the plugins of a definition, and their IPAM
	// plugins, may have. None means all.
	Allowed []string
}

// Network returns the network that d defines: a list of plugins, or a lone plugin.
// Where d.Config is blank it is the network of d's name in the files of r.ConfDir, see
// [netconf.Load]. A network without a name, or with an empty one, gets d's; a name that
// differs from d's stays. A list has the plugins that are written in it and no others,
// whatever its loadOnlyInlinedPlugins says. Everything else is kept as it was written.
//
// Network fails
//
//   - as [netconf.Parse], [netconf.Load] and [netconf.Network.Runnable] do;
//   - with [netconf.ErrInvalid] for a type of a plugin or of its IPAM plugin that is a
//     path or one of r.Own, and for "args", or "cni" in it, that is not an object;
//   - with [ErrForbidden] for a type that is not one of r.Allowed.
//
// Plugins that run plugins of their own name them in keys that Network does not know.
// r.Allowed does not cover those.
func (d Definition) Network(r Rules) (netconf.Network, error) {
	if err := d.Validate(); err != nil {
		return netconf.Network{}, err
	}
	n, err := d.network(r.ConfDir)
	if err == nil {
		n, err = n.Complete(d.Name, r.CNIVersion)
	}
	if err == nil {
		err = n.Runnable()
	}
	if err == nil {
		err = r.check(n)
	}
	if err != nil {
		return netconf.Network{}, about(d.Ref, fmt.Errorf("spec.config: %w", err))
	}
	return n, nil
}

// network returns the network without the name and the version that it lacks.
func (d Definition) network(confDir fs.FS) (netconf.Network, error) {
	if len(d.Config) > bounds.Network { // before it is copied
		return netconf.Network{}, &netconf.Error{Kind: netconf.ErrInvalid, Err: bounds.Above(bounds.Network)}
	}
	if strings.TrimSpace(d.Config) == "" {
		if confDir == nil {
			return netconf.Network{}, fmt.Errorf("%w: empty, and namespaceIsolation keeps pods from the files of the node: write the configuration of the network here", ErrForbidden)
		}
		n, err := netconf.Load(confDir, d.Name)
		if err != nil {
			err = fmt.Errorf("empty, and no file defines the network: %w", err)
		}
		return n, err
	}
	return netconf.Parse([]byte(d.Config))
}

// Check fails as [Definition.Network] does if r does not allow the plugins of n, which may
// be of a file.
func (r Rules) Check(n netconf.Network) error {
	if err := r.check(n); err != nil {
		return &Error{Err: err}
	}
	return nil
}

// check fails unless r allows the plugins of n.
func (r Rules) check(n netconf.Network) error {
	_, err := n.EditPlugins(r.checkType, netconf.In("ipam", r.checkType), checkArgs)
	return err // with the key of the plugin
}

// checkType is a [netconf.Edit] that checks the type of a plugin, or of its IPAM plugin, and changes
// nothing.
func (r Rules) checkType(keys map[string]json.RawMessage) error {
	fail := func(kind error, why string) error {
		return &netconf.Error{Kind: kind, Key: "type", Err: errors.New(why)}
	}
	for key, value := range keys {
		var typ string
		if !strings.EqualFold(key, "type") || json.Unmarshal(value, &typ) != nil { // a type is a string: n was parsed
			continue
		}
		switch {
		case typ == "." || typ == ".." || strings.ContainsAny(typ, "/\\\x00"):
			return fail(netconf.ErrInvalid, "a path, want the name of an executable")
		case slices.Contains(r.Own, typ):
			return fail(netconf.ErrInvalid, fmt.Sprintf("%q is the meta-plugin itself, or one in its place", typ))
		case len(r.Allowed) > 0 && typ != "" && !slices.Contains(r.Allowed, typ):
			return fail(ErrForbidden, fmt.Sprintf("%q is not one of allowedTypes", typ))
		}
	}
	return nil
}

// checkArgs is a [netconf.Edit] that checks "args", into which a pod's cni-args are merged.
func checkArgs(keys map[string]json.RawMessage) error {
	err := netconf.In("args", netconf.In("cni"))(keys)
	if e := (*netconf.Error)(nil); errors.As(err, &e) {
		return invalid(e.Key, "not an object")
	}
	return err
}
