package dra

import (
	"cmp"
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
	take := func(key string) json.RawMessage {
		raw := keys[key]
		delete(keys, key)
		return raw
	}
	text := func(key string) (s string) {
		if raw := take(key); raw != nil && (raw[0] != '"' || json.Unmarshal(raw, &s) != nil) {
			err = cmp.Or[error](err, &netconf.Error{Kind: netconf.ErrDecode, Key: key, Err: errors.New("not a string")})
		}
		return s
	}
	version, kind := text("apiVersion"), text("kind")
	n.IfName = text("ifName")
	switch {
	case err != nil:
	case version == parametersVersion && kind == parametersKind:
		definition := text("definition")
		n.Config = text("config")
		err = cmp.Or(err, n.name(definition, namespace))
	case isCNIConfig(version, kind):
		n.Config = string(take("config"))
		switch {
		case n.Config == "":
			err = invalid("config", "missing")
		case n.Config[0] != '{':
			err = &netconf.Error{Kind: netconf.ErrDecode, Key: "config", Err: errors.New("not an object")}
		}
	default:
		return invalid("kind", fmt.Sprintf("%q of %q, want %s of %s, or CNIConfig of cni.networking.x-k8s.io/v1alpha1",
			short(kind), short(version), parametersKind, parametersVersion))
	}
	if err != nil {
		return err
	}
	if unknown := slices.Sorted(maps.Keys(keys)); len(unknown) > 0 {
		return invalid(short(unknown[0]), "unknown")
	}
	if n.IfName != "" {
		if e := utils.ValidateInterfaceName(n.IfName); e != nil {
			return &netconf.Error{Kind: netconf.ErrInvalid, Key: "ifName", Err: fmt.Errorf("%q: %w", short(n.IfName), e)}
		}
	}
	return nil
}

// name fails unless one of definition and n.Config is set. It sets the definition.
func (n *Network) name(definition, namespace string) (err error) {
	switch {
	case definition == "" && n.Config == "":
		return invalid("definition", "missing: name a NetworkAttachmentDefinition, or write a network into config")
	case definition != "" && n.Config != "":
		return invalid("definition", "there is a config too: only one of them can have the network")
	case definition != "":
		if n.Definition, err = nad.ParseRef(definition, namespace); err != nil {
			return invalid("definition", "want name or namespace/name of a NetworkAttachmentDefinition")
		}
	}
	return nil
}

// isCNIConfig reports whether an object is of the kind of cni-dra-driver, whose documents and
// code spell it in different ways.
func isCNIConfig(version, kind string) bool {
	return (kind == "CNI" || kind == "CNIConfig") &&
		(version == "cni.networking.x-k8s.io/v1alpha1" || version == "cni.dra.networking.x-k8s.io/v1alpha1")
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
