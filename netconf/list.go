package netconf

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"
)

var (
	errMissing     = errors.New("missing")
	errZeroNetwork = errors.New("the zero Network has no plugins")
)

// listKeys is what the keys of a list mean.
type listKeys struct {
	name         string
	version      string
	disableCheck bool
	disableGC    bool
	onlyInlined  bool // loadOnlyInlinedPlugins
}

// readListKeys reads keys. On failure what it could read before is returned
// with the error, the name only when it is valid.
func readListKeys(keys object) (list listKeys, err error) {
	if raw, ok := keys["name"]; ok {
		var name string
		if err := decodeAs(raw, "name", "a string", &name); err != nil {
			return list, err
		}
		if name != "" {
			if err := validateName(name); err != nil {
				return list, err
			}
		}
		list.name = name
	}
	if list.version, err = readVersion(keys); err != nil {
		return list, err
	}
	for _, field := range []struct {
		key  string
		into *bool
	}{
		{"disableCheck", &list.disableCheck},
		{"disableGC", &list.disableGC},
		{"loadOnlyInlinedPlugins", &list.onlyInlined},
	} {
		if raw, ok := keys[field.key]; ok {
			if *field.into, err = readBool(field.key, raw); err != nil {
				return list, err
			}
		}
	}
	return list, nil
}

// validateName fails with ErrInvalid unless name is a CNI network name.
func validateName(name string) error {
	if err := utils.ValidateNetworkName(name); err != nil {
		why := errors.New(`not a network name: letters, digits, "_", "." and "-" after a letter or digit`)
		if name == "" {
			why = errors.New("empty")
		}
		return &Error{Kind: ErrInvalid, Network: name, Key: "name", Err: why}
	}
	return nil
}

// readVersion chooses among cniVersions and cniVersion as libcni's
// NetworkConfFromBytes does.
func readVersion(keys object) (chosen string, err error) {
	if raw, ok := keys["cniVersion"]; ok {
		if err := decodeAs(raw, "cniVersion", "a string", &chosen); err != nil {
			return "", err
		}
	}
	raw, ok := keys["cniVersions"]
	if !ok {
		return chosen, nil
	}
	var elements []json.RawMessage
	if err := decodeAs(raw, "cniVersions", "an array", &elements); err != nil {
		return chosen, err
	}
	type candidate struct{ key, version string }
	var candidates []candidate
	for i, element := range elements {
		c := candidate{key: fmt.Sprintf("cniVersions[%d]", i)}
		if err := decodeAs(element, c.key, "a string", &c.version); err != nil {
			return chosen, err
		}
		candidates = append(candidates, c)
	}
	if chosen != "" {
		candidates = append(candidates, candidate{"cniVersion", chosen})
	}
	// Of two spellings of one version ("1.0", "1.0.0") the first is taken.
	best, found := chosen, false
	for _, c := range candidates {
		newer, err := version.GreaterThan(c.version, version.Current())
		if err != nil {
			return chosen, &Error{Kind: ErrInvalid, Key: c.key, Err: fmt.Errorf("%q is not a version", c.version)}
		}
		if better, _ := version.GreaterThan(c.version, best); !newer && (better || !found) {
			best, found = c.version, true
		}
	}
	return best, nil
}

// readBool reads a boolean, which may be spelled as a string.
func readBool(key string, raw json.RawMessage) (bool, error) {
	var b bool
	if jsonKind(raw) != "a string" {
		return b, decodeAs(raw, key, "a boolean", &b)
	}
	var s string
	if err := decodeAs(raw, key, "a string", &s); err != nil {
		return false, err
	}
	switch strings.ToLower(s) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, &Error{Kind: ErrInvalid, Key: key, Err: errors.New("neither true nor false")}
}
