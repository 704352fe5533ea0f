package delegate

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"
)

// readResult returns the result that a successful ADD printed: exactly one
// JSON object that decodes as a result of its version. A result without a
// cniVersion is of the configuration's, as the specification has it.
func readResult(stdout []byte, confVersion string) (json.RawMessage, error) {
	text := bytes.TrimSpace(stdout)
	switch {
	case len(text) == 0:
		return nil, fmt.Errorf("%w: nothing on stdout", ErrResult)
	case text[0] != '{':
		return nil, fmt.Errorf("%w: stdout starts with %s", ErrResult, noise(text))
	}
	var keys map[string]json.RawMessage
	rest := json.NewDecoder(bytes.NewReader(text))
	if err := rest.Decode(&keys); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrResult, err)
	}
	if after := bytes.TrimSpace(text[rest.InputOffset():]); len(after) > 0 {
		return nil, fmt.Errorf("%w: after it stdout goes on with %s", ErrResult, noise(after))
	}
	if resultVersion(text) == "" {
		keys["cniVersion"], _ = json.Marshal(confVersion) // a string always marshals
		text, _ = json.Marshal(keys)                      // and so does what was just decoded
	}
	if _, err := typed(text); err != nil {
		return nil, err
	}
	return bytes.Clone(text), nil
}

// noise quotes the beginning of what should not have been printed, as far as
// it cannot be part of a configuration: those hold secrets.
func noise(text []byte) string {
	words := text
	if i := bytes.IndexAny(words, "{["); i >= 0 {
		words = words[:i]
	}
	if len(words) == 0 {
		return "more JSON"
	}
	return fmt.Sprintf("%q", words[:min(len(words), 64)])
}

// resultVersion is the cniVersion of a result, or empty.
func resultVersion(result []byte) string {
	var v struct {
		CNIVersion string `json:"cniVersion"`
	}
	_ = json.Unmarshal(result, &v) // what cannot be decoded has no version
	return v.CNIVersion
}

// typed decodes a result that has a cniVersion.
func typed(result []byte) (types.Result, error) {
	r, err := create.Create(resultVersion(result), result)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrResult, err)
	}
	return r, nil
}
