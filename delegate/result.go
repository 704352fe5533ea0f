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
	var keys map[string]json.RawMessage
	dec := json.NewDecoder(bytes.NewReader(text))
	if err := dec.Decode(&keys); err != nil {
		return nil, err
	}
	if after := trim(text[dec.InputOffset():]); len(after) > 0 {
		return nil, fmt.Errorf("after it stdout goes on with %s", noise(after, stdin))
	}
	var packed bytes.Buffer
	_ = json.Compact(&packed, text) // cannot fail: it was decoded
	if bytes.Equal(packed.Bytes(), stdin) {
		return nil, errors.New("stdout repeats the configuration")
	}
	version, err := resultVersion(text)
	if err != nil {
		return nil, err
	}
	if version == "" {
		keys["cniVersion"], _ = json.Marshal(confVersion) // a string always marshals
		text = encodeKeys(keys)
	}
	if _, err := create.Create(versionOf(text), text); err != nil {
		return nil, err
	}
	return bytes.Clone(text), nil
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
