// Package override replaces keys of the runtime's configuration by the daemon's.
package override

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/metacni/metacni/netconf"
)

// An Override has the keys that replace those of a configuration. Nil replaces none.
type Override map[string]json.RawMessage

// Parse returns the Override in a JSON object. Errors do not quote its values.
func Parse(object []byte) (Override, error) { return netconf.Decode[Override](object) }

// Apply returns the configuration conf with the keys of over in place of its own. Keys
// are compared without regard to case, as encoding/json does. Errors do not quote values
// of conf.
func (over Override) Apply(conf []byte) ([]byte, error) {
	p, err := netconf.ParsePlugin(conf)
	if err != nil {
		return nil, err
	}
	p, err = p.Edit(func(keys map[string]json.RawMessage) error {
		for _, name := range slices.Sorted(maps.Keys(over)) {
			maps.DeleteFunc(keys, func(key string, _ json.RawMessage) bool { return strings.EqualFold(key, name) })
			keys[name] = over[name]
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return p.MarshalJSON()
}
