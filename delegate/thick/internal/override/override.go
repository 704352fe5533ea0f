// Package override replaces keys of the runtime's configuration by the daemon's.
package override

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/metacni/metacni/internal/rawjson"
	"github.com/metacni/metacni/netconf"
)

// An Override has the keys that replace those of a configuration. Nil replaces none.
type Override map[string]json.RawMessage

// Parse returns the Override in a JSON object. Errors do not quote its values.
func Parse(object []byte) (Override, error) { return netconf.Decode[Override](object) }

// Apply returns the configuration conf with the keys of over in place of its own. Keys
// are compared without regard to case, as encoding/json does. It looks at no value of
// conf, and errors do not quote any.
func (over Override) Apply(conf []byte) ([]byte, error) {
	keys, err := netconf.Decode[map[string]json.RawMessage](conf)
	if err == nil && keys == nil {
		err = &netconf.Error{Kind: netconf.ErrDecode, Err: errors.New("null, want an object")}
	}
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(over)) {
		maps.DeleteFunc(keys, func(key string, _ json.RawMessage) bool { return strings.EqualFold(key, name) })
		keys[name] = over[name]
	}
	return rawjson.Marshal(keys)
}
