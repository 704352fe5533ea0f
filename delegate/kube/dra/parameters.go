package dra

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// The kind of opaque parameters of this package. An object of it names a
// NetworkAttachmentDefinition, or has the JSON of a network as a string:
//
//	apiVersion: dra.metacni.io/v1alpha1
//	kind: Network
//	ifName: net1             # optional
//	definition: blue/storage # or config: '{"cniVersion": …}'
//
// A string keeps the network as it was written. What kubectl reads as YAML loses the order of
// keys, and the digits of large numbers.
const (
	parametersVersion = "dra.metacni.io/v1alpha1"
	parametersKind    = "Network"
)

// maxParameters is the largest number of bytes that opaque parameters may have. An API server
// takes no more.
const maxParameters = 10 << 10

// Parameters say which network a request of a claim is for. Exactly one of Definition and
// Config is set.
type Parameters struct {
	// IfName is the name of the interface in the container. Empty leaves it to the plugin.
	IfName string

	// Definition is the NetworkAttachmentDefinition that has the network.
	Definition nad.Ref

	// Config is the JSON of the network, byte for byte as it is in the parameters.
	Config string
}

// parseParameters parses the opaque parameters in a claim of the given namespace, or in its
// DeviceClass. They are an object of one of these kinds:
//
//   - [parametersKind] of [parametersVersion]
//   - CNI or CNIConfig of cni.networking.x-k8s.io/v1alpha1 or
//     cni.dra.networking.x-k8s.io/v1alpha1, which cni-dra-driver reads: the network is the
//     object "config"
//
// A definition without a namespace is of the claim's. parseParameters does not look into the
// network.
//
// It fails with [netconf.ErrDecode] if data is not one JSON object, has a key twice, or has a
// value of the wrong type, and with [netconf.ErrInvalid] if data is longer than
// [maxParameters], is of another kind, has an unknown key, names no network or two, or has a
// name that cannot be one.
func parseParameters(data []byte, namespace string) (Parameters, error) {
	if len(data) > maxParameters {
		return Parameters{}, invalid("", "longer than 10 KiB")
	}
	keys, err := netconf.Decode[map[string]json.RawMessage](data)
	if err != nil {
		return Parameters{}, err
	}
	o := object{keys: keys}
	version, kind := o.text("apiVersion"), o.text("kind")
	p := Parameters{IfName: o.text("ifName")}
	if o.err != nil {
		return Parameters{}, o.err
	}
	switch {
	case version == parametersVersion && kind == parametersKind:
		err = p.parseOwn(&o, namespace)
	case isCNIConfig(version, kind):
		p.Config, err = o.object("config")
	default:
		return Parameters{}, invalid("kind", fmt.Sprintf("%q of %q, want %s of %s, or CNIConfig of cni.networking.x-k8s.io/v1alpha1",
			short(kind), short(version), parametersKind, parametersVersion))
	}
	if err == nil {
		err = o.rest()
	}
	if err == nil && p.IfName != "" {
		if e := utils.ValidateInterfaceName(p.IfName); e != nil {
			err = &netconf.Error{Kind: netconf.ErrInvalid, Key: "ifName", Err: fmt.Errorf("%q: %w", short(p.IfName), e)}
		}
	}
	if err != nil {
		return Parameters{}, err
	}
	return p, nil
}

// isCNIConfig reports whether an object is of the kind of cni-dra-driver, whose documents and
// code spell it in different ways.
func isCNIConfig(version, kind string) bool {
	return (kind == "CNI" || kind == "CNIConfig") &&
		(version == "cni.networking.x-k8s.io/v1alpha1" || version == "cni.dra.networking.x-k8s.io/v1alpha1")
}

// parseOwn reads what is special to the kind of this package.
func (p *Parameters) parseOwn(o *object, namespace string) error {
	definition, config := o.text("definition"), o.text("config")
	switch {
	case o.err != nil:
		return o.err
	case definition == "" && config == "":
		return invalid("definition", "missing: name a NetworkAttachmentDefinition, or write a network into config")
	case definition != "" && config != "":
		return invalid("definition", "there is a config too: only one of them can have the network")
	case config != "":
		p.Config = config
		return nil
	}
	ref, err := nad.ParseRef(definition, namespace)
	if err != nil {
		return &netconf.Error{Kind: netconf.ErrInvalid, Key: "definition", Err: errors.New("want name or namespace/name of a NetworkAttachmentDefinition")}
	}
	p.Definition = ref
	return nil
}

// check fails unless the network in p can be run, and a claim of the given namespace may use it.
func (p Parameters) check(namespace string, policy nad.Policy, rules nad.Rules) error {
	if p.Definition != (nad.Ref{}) {
		_, err := policy.Decide(namespace, p.Definition, nad.Claimed)
		return err
	}
	_, err := p.Network(rules)
	return err
}

// checkOwn fails unless the plugins of the network in p.Config, which is written in a claim itself,
// have allowed types.
func (p Parameters) checkOwn(rules nad.Rules, allowed []string) error {
	if len(allowed) == 0 {
		return errors.New("config: claims may have no networks of their own (allowedTypes): name a definition")
	}
	rules.Allowed = allowed
	_, err := p.Network(rules)
	return err
}

// Network returns the network in p.Config, which is not empty, with r.CNIVersion if it has no
// version. It fails as [netconf.Parse], [netconf.Network.Runnable] and [nad.Rules.Check] do.
func (p Parameters) Network(r nad.Rules) (netconf.Network, error) {
	n, err := netconf.Parse([]byte(p.Config))
	if err == nil && n.CNIVersion() == "" && !n.Has("cniVersions") && r.CNIVersion != "" {
		n, err = n.Edit(netconf.Default("cniVersion", r.CNIVersion))
	}
	if err == nil {
		err = n.Runnable()
	}
	if err == nil {
		err = r.Check(n)
	}
	if err != nil {
		return netconf.Network{}, fmt.Errorf("config: %w", err)
	}
	return n, nil
}

// An object takes the keys of a JSON object one by one. It keeps the first error.
type object struct {
	keys map[string]json.RawMessage
	err  error
}

// text takes a string. It returns "" where there is none.
func (o *object) text(key string) string {
	raw, ok := o.keys[key]
	delete(o.keys, key)
	if !ok {
		return ""
	}
	var s *string
	if err := json.Unmarshal(raw, &s); (err != nil || s == nil) && o.err == nil {
		o.err = &netconf.Error{Kind: netconf.ErrDecode, Key: key, Err: errors.New("not a string")}
	}
	if s == nil {
		return ""
	}
	return *s
}

// object takes an object, as it is written.
func (o *object) object(key string) (string, error) {
	raw, ok := o.keys[key]
	delete(o.keys, key)
	if !ok {
		return "", invalid(key, "missing")
	}
	if raw[0] != '{' {
		return "", &netconf.Error{Kind: netconf.ErrDecode, Key: key, Err: errors.New("not an object")}
	}
	return string(raw), nil
}

// rest fails if there are keys that nobody has taken.
func (o *object) rest() error {
	for _, key := range slices.Sorted(maps.Keys(o.keys)) {
		return invalid(short(key), "unknown")
	}
	return nil
}

// short returns s, or its beginning with a mark: errors quote what users write.
func short(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}

func invalid(key, why string) error {
	return &netconf.Error{Kind: netconf.ErrInvalid, Key: key, Err: errors.New(why)}
}
