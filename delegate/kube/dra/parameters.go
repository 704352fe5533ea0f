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

// parse sets what opaque parameters say about the network of a claim in the given namespace. They
// are an object of one of these kinds:
//
//   - [parametersKind] of [parametersVersion]
//   - CNI or CNIConfig of cni.networking.x-k8s.io/v1alpha1 or
//     cni.dra.networking.x-k8s.io/v1alpha1, which cni-dra-driver reads: the network is the
//     object "config"
//
// A definition without a namespace is of the claim's. parse does not look into the network.
//
// It fails with [netconf.ErrDecode] if the parameters are not one JSON object, have a key twice,
// or have a value of the wrong type, and with [netconf.ErrInvalid] if they are longer than
// [maxParameters], are of another kind, have an unknown key, name no network or two, or have a
// name that cannot be one.
func (n *Network) parse(opaque []byte, namespace string) error {
	if len(opaque) > maxParameters {
		return invalid("", "longer than 10 KiB")
	}
	keys, err := netconf.Decode[map[string]json.RawMessage](opaque)
	if err != nil {
		return err
	}
	o := object{keys: keys}
	version, kind := o.text("apiVersion"), o.text("kind")
	n.IfName = o.text("ifName")
	switch {
	case o.err != nil:
	case version == parametersVersion && kind == parametersKind:
		n.parseOwn(&o, namespace)
	case isCNIConfig(version, kind):
		n.Config = o.object("config")
	default:
		o.fail(invalid("kind", fmt.Sprintf("%q of %q, want %s of %s, or CNIConfig of cni.networking.x-k8s.io/v1alpha1",
			short(kind), short(version), parametersKind, parametersVersion)))
	}
	for _, key := range slices.Sorted(maps.Keys(o.keys)) { // which nobody has taken
		o.fail(invalid(short(key), "unknown"))
	}
	if n.IfName != "" {
		if e := utils.ValidateInterfaceName(n.IfName); e != nil {
			o.fail(&netconf.Error{Kind: netconf.ErrInvalid, Key: "ifName", Err: fmt.Errorf("%q: %w", short(n.IfName), e)})
		}
	}
	return o.err
}

// parseOwn reads what is special to the kind of this package.
func (n *Network) parseOwn(o *object, namespace string) {
	definition := o.text("definition")
	n.Config = o.text("config")
	switch {
	case definition == "" && n.Config == "":
		o.fail(invalid("definition", "missing: name a NetworkAttachmentDefinition, or write a network into config"))
	case definition != "" && n.Config != "":
		o.fail(invalid("definition", "there is a config too: only one of them can have the network"))
	case definition != "":
		var err error
		if n.Definition, err = nad.ParseRef(definition, namespace); err != nil {
			o.fail(invalid("definition", "want name or namespace/name of a NetworkAttachmentDefinition"))
		}
	}
}

// isCNIConfig reports whether an object is of the kind of cni-dra-driver, whose documents and
// code spell it in different ways.
func isCNIConfig(version, kind string) bool {
	return (kind == "CNI" || kind == "CNIConfig") &&
		(version == "cni.networking.x-k8s.io/v1alpha1" || version == "cni.dra.networking.x-k8s.io/v1alpha1")
}

// An object takes the keys of a JSON object one by one. It keeps the first error.
type object struct {
	keys map[string]json.RawMessage
	err  error
}

// fail keeps err, unless there is one.
func (o *object) fail(err error) {
	if o.err == nil {
		o.err = err
	}
}

// text takes a string. It returns "" where there is none.
func (o *object) text(key string) string {
	raw, ok := o.keys[key]
	delete(o.keys, key)
	var s *string
	if ok && (json.Unmarshal(raw, &s) != nil || s == nil) {
		o.fail(&netconf.Error{Kind: netconf.ErrDecode, Key: key, Err: errors.New("not a string")})
	}
	if s == nil {
		return ""
	}
	return *s
}

// object takes an object, as it is written.
func (o *object) object(key string) string {
	raw, ok := o.keys[key]
	delete(o.keys, key)
	switch {
	case !ok:
		o.fail(invalid(key, "missing"))
	case raw[0] != '{':
		o.fail(&netconf.Error{Kind: netconf.ErrDecode, Key: key, Err: errors.New("not an object")})
	}
	return string(raw)
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
