// Package rawjson writes JSON whose strings are as their authors wrote them.
package rawjson

import (
	"bytes"
	"encoding/json"
)

// Marshal is [json.Marshal] without its escapes of <, > and & for HTML.
func Marshal(v any) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}
