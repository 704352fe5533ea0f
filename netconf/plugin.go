package netconf

import (
	"bytes"
	"encoding/json"
	"math"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/rawjson"
)

// A Plugin is one plugin configuration object (SPEC section 1, "Plugin
// configuration objects").
//
// It is immutable: a method that changes something returns a new Plugin, and what
// methods return is a copy. Goroutines may share it. The zero Plugin has no keys;
// [Plugin.Edit] can add some.
type Plugin struct {
	keys object // nil only in the zero Plugin
	typ  string
}

// ParsePlugin parses a single plugin configuration object. "type" may be
// missing, for a meta-plugin to fill in; [Parse] and [Network.Request] require
// it.
//
// It fails with [ErrDecode] where data is not a JSON object, has two values for a key,
// or has a value of the wrong JSON type under a key that libcni reads: "type",
// "name", "cniVersion", "ipam", "dns", "prevResult" and
// "cni.dev/valid-attachments". "capabilities" may be anything, see
// [Plugin.Capabilities]. It fails with [ErrInvalid] where data is nested more deeply
// than 1,000 levels.
func ParsePlugin(data []byte) (Plugin, error) {
	if err := checkBounds(data, math.MaxInt); err != nil {
		return Plugin{}, err
	}
	return parsePlugin(data)
}

// NewPlugin returns the plugin configuration that v marshals to. For example, v is a map,
// a struct or a [json.RawMessage]. NewPlugin fails with [ErrInvalid] if v cannot be
// marshalled or has no "type", and otherwise as [ParsePlugin] does.
func NewPlugin(v any) (Plugin, error) {
	raw, err := rawjson.Marshal(v)
	if err != nil {
		return Plugin{}, asError(err, ErrInvalid)
	}
	p, err := ParsePlugin(raw)
	if err == nil {
		err = p.requireType()
	}
	if err != nil {
		return Plugin{}, err
	}
	return p, nil
}

// parsePlugin is ParsePlugin without limits.
func parsePlugin(data []byte) (Plugin, error) {
	keys, err := parseObject(data)
	if err != nil {
		return Plugin{}, err
	}
	return newPlugin(keys)
}

// newPlugin makes a plugin of keys, which it owns from here on.
func newPlugin(keys object) (Plugin, error) {
	p := Plugin{keys: keys}
	for _, r := range reserved {
		raw, ok, err := keys.find(r.key)
		if err != nil {
			return Plugin{}, err
		}
		if !ok || r.want == "" || isNull(raw) && r.key != "type" {
			continue
		}
		if r.into == nil {
			err = checkKind(raw, r.key, r.want)
		} else {
			err = decodeAs(raw, r.key, r.want, r.into())
		}
		if err != nil {
			return Plugin{}, err
		}
		if r.key == "type" {
			p.typ = rawjson.Unquote(raw)
		}
	}
	return p, nil
}

// requireType fails with ErrInvalid if p has no type.
func (p Plugin) requireType() error {
	if p.typ == "" {
		return &Error{Kind: ErrInvalid, Key: "type", Err: errMissing}
	}
	return nil
}

// reserved are the keys that libcni or this package reads. Those without a type may be anything.
var reserved = []struct { //nolint:gochecknoglobals // never written
	key, want string
	into      func() any // nil for strings
}{
	{"type", "a string", nil},
	{"name", "a string", nil},
	{"cniVersion", "a string", nil},
	{"ipam", "an object", func() any { return new(types.IPAM) }},
	{"dns", "an object", func() any { return new(types.DNS) }},
	{"prevResult", "an object", func() any { return new(map[string]json.RawMessage) }},
	{"cni.dev/valid-attachments", "an array", func() any { return new([]types.GCAttachment) }},
	{key: "capabilities"},
	{key: "runtimeConfig"},
	{key: "args"},
	{key: "step"},
}

// Type reports the name of the plugin's executable, or "" when there is none.
// It is as written: whoever looks for the executable has to refuse paths.
func (p Plugin) Type() string { return p.typ }

// Step reports the string under "step", in upper or lower case, or "" when there is
// none. A meta-plugin does a plugin with a step itself instead of running an
// executable: see package delegate/plugin.
func (p Plugin) Step() string {
	raw, ok, err := p.keys.find("step")
	if !ok || err != nil || jsonKind(raw) != "a string" {
		return ""
	}
	return rawjson.Unquote(raw)
}

// Has reports whether the object has key, in upper or lower case.
func (p Plugin) Has(key string) bool {
	_, ok, err := p.keys.find(key)
	return ok || err != nil
}

// Get returns the value of key, without white space, and whether it is there. The key is of
// this spelling, or else of another in upper and lower case.
func (p Plugin) Get(key string) (json.RawMessage, bool) {
	if raw, ok := p.keys[key]; ok {
		return bytes.Clone(raw), true
	}
	raw, ok, _ := p.keys.find(key) // two values are none
	return bytes.Clone(raw), ok
}

// Capabilities returns the capabilities the plugin declares, sorted: those that
// are true in "capabilities". What has another type is not declared, and is no
// error. The result is nil when there are none.
func (p Plugin) Capabilities() []string {
	raw, ok, err := p.keys.find("capabilities")
	if !ok || err != nil || jsonKind(raw) != "an object" {
		return nil
	}
	var declared []string
	values := splitObject(raw)
	for _, name := range values.sorted() {
		if string(values[name]) == "true" {
			declared = append(declared, name)
		}
	}
	return declared
}

// Decode stores the object in the value v points to, as [json.Unmarshal] does.
// It fails with [ErrDecode].
func (p Plugin) Decode(v any) error {
	data, _ := p.MarshalJSON() // does not fail
	return unmarshal(data, v)
}

// Edit applies edits in order and returns the result; p is left as it was. An
// error of an edit is returned as an [*Error], with [ErrInvalid] unless the
// edit said otherwise. What [ParsePlugin] would not accept is [ErrDecode].
func (p Plugin) Edit(edits ...Edit) (Plugin, error) {
	keys, err := p.keys.edit(edits)
	if err != nil {
		return Plugin{}, err
	}
	return newPlugin(keys)
}

// IsZero reports whether p is the zero Plugin. The plugin of an empty object is
// not.
func (p Plugin) IsZero() bool { return p.keys == nil }

// Equal reports whether p and q have the same keys with the same values, as
// written: 1 and 1.0 differ.
func (p Plugin) Equal(q Plugin) bool {
	return p.IsZero() == q.IsZero() && bytes.Equal(p.keys.marshal(), q.keys.marshal())
}

// MarshalJSON writes the object with sorted keys, and strings and numbers as
// they were read. The zero Plugin is null. It does not fail. See
// [Network.MarshalJSON] about HTML.
func (p Plugin) MarshalJSON() ([]byte, error) {
	if p.IsZero() {
		return []byte("null"), nil
	}
	return p.keys.marshal(), nil
}

// UnmarshalJSON is [ParsePlugin], with the same errors, but without limits, as
// [Network.UnmarshalJSON]; null leaves p as it is.
func (p *Plugin) UnmarshalJSON(data []byte) error {
	if isNull(data) {
		return nil
	}
	q, err := parsePlugin(data)
	if err != nil {
		return err
	}
	*p = q
	return nil
}
