// Package rawjson reads and writes JSON whose strings are as their authors wrote them.
package rawjson

import (
	"bytes"
	"encoding/json"
	"iter"
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

// Members yields the keys and values of object in their order, also those of a key given
// twice. It yields nothing if object is not a JSON object.
func Members(object []byte) iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		s := Scan(object)
		if !json.Valid(object) || s.Space() != '{' {
			return
		}
		for s.Next() {
			key := Unquote(s.Key())
			if !yield(key, s.Value()) {
				return
			}
		}
	}
}
