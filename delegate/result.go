package delegate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/metacni/metacni/netconf"
)

// readResult returns the result that a successful ADD printed, which was given
// stdin: exactly one JSON object, with no key twice, that decodes as a result
// of its version. A result without a cniVersion is of the configuration's, as
// the specification has it.
func readResult(stdout []byte, confVersion string, stdin []byte) (json.RawMessage, error) {
	result, err := parseResult(stdout, confVersion, stdin)
	if err != nil {
		// Decoders quote what they cannot read: their words only, not the chain.
		return nil, fmt.Errorf("%w: %s", ErrResult, hider(stdin, true).Replace(err.Error()))
	}
	return result, nil
}

func parseResult(stdout []byte, confVersion string, stdin []byte) (json.RawMessage, error) {
	text := trim(stdout)
	switch {
	case len(text) == 0:
		return nil, errors.New("nothing on stdout")
	case text[0] != '{':
		return nil, fmt.Errorf("stdout starts with %s", noise(text, stdin))
	}
	version, err := resultVersion(text)
	if err != nil {
		return nil, notOneObject(text, stdin, err)
	}
	if repeats(text, stdin) {
		return nil, errors.New("stdout repeats the configuration")
	}
	if version == "" {
		var keys map[string]json.RawMessage
		_ = json.Unmarshal(text, &keys)                   // cannot fail: it was decoded
		keys["cniVersion"], _ = json.Marshal(confVersion) // a string always marshals
		text = encodeKeys(keys)
		version = versionOf(text)
	}
	if _, err := create.Create(version, text); err != nil {
		return nil, err
	}
	return bytes.Clone(text), nil
}

// notOneObject says why text, which begins with a bracket, is not the result of
// a plugin that was given stdin, or returns err.
func notOneObject(text, stdin []byte, err error) error {
	var object json.RawMessage
	dec := json.NewDecoder(bytes.NewReader(text))
	if err := dec.Decode(&object); err != nil {
		return err
	}
	if after := trim(text[dec.InputOffset():]); len(after) > 0 {
		return fmt.Errorf("after it stdout goes on with %s", noise(after, stdin))
	}
	return err
}

// repeats reports whether text, which is valid JSON, is conf, which has no white
// space, but for white space.
func repeats(text, conf []byte) bool {
	if len(text) < len(conf) {
		return false
	}
	var packed bytes.Buffer
	_ = json.Compact(&packed, text) // cannot fail: it is valid
	return bytes.Equal(packed.Bytes(), conf)
}

// trim removes the white space of JSON, which is less than that of Unicode.
func trim(text []byte) []byte { return bytes.Trim(text, " \t\r\n") }

// encodeKeys writes keys, which were decoded, with no escapes for HTML.
func encodeKeys(keys map[string]json.RawMessage) []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(keys) // cannot fail: the values are valid JSON
	return bytes.TrimSpace(out.Bytes())
}

// resultVersion is the cniVersion of a result, or empty where it has none. It
// fails where no plugin could be handed the result as prevResult.
func resultVersion(result []byte) (string, error) {
	v, err := netconf.Decode[struct {
		CNIVersion string `json:"cniVersion"`
	}](result)
	return v.CNIVersion, err
}

// versionOf is the cniVersion of a result, or empty where there is none to be
// had.
func versionOf(result []byte) string {
	var v struct {
		CNIVersion string `json:"cniVersion"`
	}
	_ = json.Unmarshal(result, &v) // what cannot be decoded has no version
	return v.CNIVersion
}

// typed decodes a result that has a cniVersion.
func typed(result []byte) (types.Result, error) {
	if !bytes.HasPrefix(trim(result), []byte("{")) {
		return nil, fmt.Errorf("%w: not an object", ErrResult) // null would decode
	}
	r, err := create.Create(versionOf(result), result)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrResult, err)
	}
	return r, nil
}
