// Package netconf reads CNI network configurations and derives from them the
// request configurations that plugins receive on stdin.
//
// A configuration is kept as JSON, one raw value per key. So unknown keys, and
// numbers that no Go type holds, reach the plugin as they were written. The keys
// of the output are sorted: the same configuration always gives the same bytes. A
// file means the same to this package as to libcni: see [Load].
//
// The package is stricter than encoding/json. A key with two values in one object, at
// any depth, is an error, and so are bytes that are not UTF-8 and data after the
// value. A key that stands twice with one value is accepted, see [Repeated]. Keys that the
// package knows match in upper and lower case, after the exact spelling; two spellings with two
// values are an error. Every error is an [*Error].
package netconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/metacni/metacni/internal/bounds"
	"github.com/metacni/metacni/internal/rawjson"
)

// A Network is a network configuration: an ordered list of plugins under one
// name and one version of the CNI protocol (SPEC section 1, "Configuration
// format").
//
// It is immutable: a method that changes something returns a new Network, and what
// methods return is a copy. Goroutines may share it. The zero Network has no
// plugins and marshals as null. [Network.EditPlugins],
// [Network.WithPlugins] and [Network.Request] reject it with [ErrInvalid].
type Network struct {
	keys    object   // list-level keys without "plugins"; nil only in the zero Network
	plugins []Plugin // each with a type, except perhaps that of Single
	list    listKeys // what keys say
	invalid error    // why keys say nothing; only Single makes such a Network
}

// Parse parses a network configuration in one of its two forms:
//
//   - a list: an object with "plugins";
//   - a lone plugin configuration object, the form that CNI 1.0 has retired. It
//     becomes a network of that one plugin, and its "name" and "cniVersion" are also the
//     network's. As in libcni, its "cniVersions" has no meaning.
//
// An object with both "plugins" and "type" is a list.
//
// "name" and "cniVersion" may be absent or null, for a meta-plugin to fill in with
// [Network.Complete].
//
// Parse fails with [ErrDecode] where data is not JSON, has two values for a key, or has
// a value of the wrong JSON type under a key of the specification, and with
// [ErrInvalid] where the name is not a CNI network name, there is no plugin, a
// plugin has no type, or a value is not among those allowed. The [*Error] names
// the key, such as "plugins[1].type", and the network where it is known.
//
// Data that is larger than 1 MiB, or nested more deeply than 1,000 levels, is
// [ErrInvalid].
//
// Parse reads no files. A list without "plugins" has its plugins in a
// sub-directory: use [Load] or [LoadFile].
func Parse(data []byte) (Network, error) {
	if err := checkBounds(data, bounds.Network); err != nil {
		return Network{}, err
	}
	return parseBounded(data)
}

// parseBounded is Parse for data that is not larger or deeper than its caller wants.
func parseBounded(data []byte) (Network, error) {
	n, _, err := parse(data, "")
	if err != nil {
		return Network{}, err
	}
	if len(n.plugins) == 0 {
		return Network{}, n.fail(ErrInvalid, "plugins", errors.New(`missing, and there is no "type" either`))
	}
	return n, nil
}

// parse is Parse, and accepts a list without "plugins". It reports whether data
// has the form of a list. The extension of a file decides about that as in libcni.
func parse(data []byte, ext string) (n Network, list bool, err error) {
	keys, err := parseObject(data)
	if err != nil {
		return Network{}, false, err
	}
	name := keys.nameForErrors()
	_, plugins, err := keys.find("plugins")
	_, typed, wrong := keys.find("type")
	switch ext {
	case ".conflist":
		err, list = checkListFile(keys), true
	case ".conf", ".json":
		if list, err = false, wrong; plugins && !typed && err == nil {
			err = &Error{Kind: ErrInvalid, Key: "type", Err: errors.New("missing, and programs read this file as one plugin: end the name of a list with .conflist")}
		}
	default:
		list = plugins || !typed && wrong == nil
	}
	if err == nil && list {
		n, err = parseList(keys)
	} else if err == nil {
		var p Plugin
		if p, err = newPlugin(keys); err == nil {
			err = p.requireType()
		}
		if err == nil {
			n, err = lone(p)
		}
	}
	if err != nil {
		return Network{}, list, inNetwork(name, err)
	}
	return n, list, nil
}

// checkListFile fails if libcni does not take keys, of a file whose name ends in .conflist, for
// a network: it reads them as they are written.
func checkListFile(keys object) error {
	for _, key := range []string{"name", "plugins"} {
		_, exact := keys[key]
		if _, folded, _ := keys.find(key); !exact && (folded || key == "name") {
			err := errMissing
			if folded {
				err = fmt.Errorf("want exactly %q: libcni reads no other spelling in a .conflist file", key)
			}
			return &Error{Kind: ErrInvalid, Key: key, Err: err}
		}
	}
	_, err := readListKeys(keys)
	return err
}

// parseList returns the network of a list, which may have no plugins.
func parseList(keys object) (n Network, err error) {
	raw, plugins, err := keys.find("plugins")
	keys.remove("plugins")
	if err == nil {
		n, err = newNetwork(keys, nil)
	}
	if err != nil {
		return n, err
	}
	if !plugins && n.list.onlyInlined {
		return n, n.fail(ErrInvalid, "plugins", errors.New(`missing, and "loadOnlyInlinedPlugins" is true`))
	}
	if plugins {
		n.plugins, err = parsePlugins(raw)
	}
	return n, err
}

// parsePlugins parses the value of "plugins", which is valid JSON. It fails at the first
// plugin that is wrong, before the others take memory.
func parsePlugins(raw json.RawMessage) ([]Plugin, error) {
	if err := checkKind(raw, "plugins", "an array"); err != nil {
		return nil, err
	}
	var plugins []Plugin
	for s := rawjson.Scan(raw); s.Next(); {
		element := s.Value()
		err := checkKind(element, "", "an object")
		var p Plugin
		if err == nil {
			p, err = newPlugin(splitObject(element))
		}
		if err == nil {
			err = p.requireType()
		}
		if err != nil {
			return nil, under(pluginKey(len(plugins)), err)
		}
		plugins = append(plugins, p)
	}
	if len(plugins) == 0 {
		return nil, &Error{Kind: ErrInvalid, Key: "plugins", Err: errors.New("no plugins in the list")}
	}
	return plugins, nil
}

// List returns the network of plugins, in the order of ADD. An empty name or cniVersion
// is left out, to be filled in later, as with [Parse]. List fails with [ErrInvalid] if
// name is not a CNI network name, there are no plugins, or one has no type. See
// [NewPlugin].
func List(name, cniVersion string, plugins ...Plugin) (Network, error) {
	keys := object{}
	for key, value := range map[string]string{"name": name, "cniVersion": cniVersion} {
		if value != "" {
			keys[key] = encodeString(value)
		}
	}
	n, err := newNetwork(keys, nil)
	if err != nil {
		return Network{}, err
	}
	return n.WithPlugins(plugins...)
}

// Single returns the network that consists of p, with the name and version in p's
// "name" and "cniVersion". Single of the zero Plugin is the zero Network.
//
// Single does not fail, so that a half-finished plugin can become a network and be
// completed later. [Network.Request] reports what is missing or wrong.
func Single(p Plugin) Network {
	if p.IsZero() {
		return Network{}
	}
	n, err := lone(p)
	if err != nil {
		n.invalid = err
	}
	return n
}

// lone makes a network of one plugin. With an error, the network lacks only the
// key that is wrong.
func lone(p Plugin) (Network, error) {
	keys := object{}
	for _, key := range []string{"name", "cniVersion"} {
		if raw, ok, _ := p.keys.find(key); ok {
			keys[key] = raw
		}
	}
	return newNetwork(keys, []Plugin{p})
}

// newNetwork makes a network of keys and plugins, which the caller must not change
// later. It writes known keys as the specification does, and leaves out a name and a cniVersion that are null.
func newNetwork(keys object, plugins []Plugin) (Network, error) {
	for _, key := range []string{"name", "cniVersion", "cniVersions", "disableCheck", "disableGC", "loadOnlyInlinedPlugins"} {
		raw, ok, err := keys.find(key)
		if err != nil {
			return Network{keys: keys, plugins: plugins}, err
		}
		absent := isNull(raw) && (key == "name" || key == "cniVersion")
		if keys.remove(key); ok && !absent {
			keys[key] = raw
		}
	}
	list, err := readListKeys(keys)
	return Network{keys: keys, plugins: plugins, list: list}, err
}

// fail makes an error about key of n.
func (n Network) fail(kind error, key string, err error) error {
	return &Error{Kind: kind, Network: n.list.name, Key: key, Err: err}
}

// Name reports the network's name, or "" when it has none. It is a valid CNI
// network name, never a path.
func (n Network) Name() string { return n.list.name }

// CNIVersion reports the version of the protocol to speak: the highest of
// "cniVersions" and "cniVersion" that the cni library implements. Without
// "cniVersions", or when none of them is implemented, it is "cniVersion". It is
// "0.1.0" when neither key is given, as the specification says; libcni leaves that
// to the plugin.
func (n Network) CNIVersion() string {
	if n.list.version == "" {
		return "0.1.0"
	}
	return n.list.version
}

// Plugins returns the plugins in the order of ADD.
func (n Network) Plugins() []Plugin { return slices.Clone(n.plugins) }

// Capabilities returns the capabilities that any of the plugins declares,
// sorted. It is nil when there are none.
func (n Network) Capabilities() []string {
	var all []string
	for _, p := range n.plugins {
		all = append(all, p.Capabilities()...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// DisableCheck reports "disableCheck": whether CHECK succeeds without running the
// plugins. As in libcni, the value may be a boolean or the string "true" or
// "false".
func (n Network) DisableCheck() bool { return n.list.disableCheck }

// DisableGC reports "disableGC": whether GC succeeds without running the plugins.
// See [Network.DisableCheck] for the values.
func (n Network) DisableGC() bool { return n.list.disableGC }

// IsZero reports whether n is the zero Network.
func (n Network) IsZero() bool { return n.keys == nil && len(n.plugins) == 0 }

// Equal reports whether n and m have the same keys with the same values, as
// written: 1 and 1.0 differ.
func (n Network) Equal(m Network) bool {
	a, _ := n.MarshalJSON()
	b, _ := m.MarshalJSON()
	return bytes.Equal(a, b)
}

// EditPlugins applies the same edits to every plugin and returns the network of
// the results; n stays unchanged. It fails with [ErrInvalid] when an edit fails or
// leaves a plugin without type, and with [ErrDecode] when an edit leaves what
// [ParsePlugin] would not accept. The key of the [*Error] names the plugin, as in
// "plugins[1].ipam".
func (n Network) EditPlugins(edits ...Edit) (Network, error) {
	plugins := make([]Plugin, len(n.plugins))
	for i, p := range n.plugins {
		var err error
		if plugins[i], err = p.Edit(edits...); err != nil {
			return Network{}, inNetwork(n.Name(), under(pluginKey(i), err))
		}
	}
	return n.WithPlugins(plugins...)
}

// WithPlugins returns a list with the network's own keys and the given plugins; n stays
// unchanged. It fails with [ErrInvalid] without plugins, or if one has no type.
//
// The own keys of a lone plugin configuration are its "name" and "cniVersion". Its plugin has
// these and all others, also in the list:
//
//	n, err = n.WithPlugins(append(n.Plugins(), p)...)
func (n Network) WithPlugins(plugins ...Plugin) (Network, error) {
	switch {
	case n.invalid != nil:
		return Network{}, n.invalid
	case n.IsZero():
		return Network{}, &Error{Kind: ErrInvalid, Err: errZeroNetwork}
	case len(plugins) == 0:
		return Network{}, n.fail(ErrInvalid, "plugins", errors.New("no plugins in the list"))
	}
	for i, p := range plugins {
		if err := p.requireType(); err != nil {
			return Network{}, inNetwork(n.Name(), under(pluginKey(i), err))
		}
	}
	n.plugins = slices.Clone(plugins)
	return n, nil
}

// MarshalJSON writes the network as a list, with sorted keys, and with strings and
// numbers as they were read. The zero Network is null. MarshalJSON does not fail.
//
// [json.Marshal] escapes <, > and & for HTML in what MarshalJSON returns: with it
// strings may be spelled differently, but mean the same.
func (n Network) MarshalJSON() ([]byte, error) {
	if n.IsZero() {
		return []byte("null"), nil
	}
	keys := n.keys.shallow()
	keys["plugins"] = n.marshalPlugins()
	return keys.marshal(), nil
}

// size returns about how many bytes [Network.MarshalJSON] writes, without writing them.
func (n Network) size() int {
	size := n.keys.size() + len(`"plugins":[],`)
	for _, p := range n.plugins {
		size += p.keys.size() + len(",")
	}
	return size
}

// marshalPlugins writes the value of "plugins".
func (n Network) marshalPlugins() json.RawMessage {
	out := []byte{'['}
	for i, p := range n.plugins {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, p.keys.marshal()...)
	}
	return append(out, ']')
}

// UnmarshalJSON is [Parse], with the same errors; null leaves n as it is. It does not
// limit the size and the depth of data, which [Decode] and other readers have checked.
func (n *Network) UnmarshalJSON(data []byte) error {
	if isNull(data) {
		return nil
	}
	m, err := parseBounded(data)
	if err != nil {
		return err
	}
	*n = m
	return nil
}

// pluginKey names the i'th plugin in errors.
func pluginKey(i int) string { return fmt.Sprintf("plugins[%d]", i) }
