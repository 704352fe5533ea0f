// Package rawjson reads and writes JSON whose strings are as their authors wrote them.
package rawjson

import (
	"bytes"
	"encoding/json"
	"iter"
	"reflect"
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

// Same reports whether a and b, which are valid JSON, have one value. The order of keys does not
// matter, and numbers are compared as they were written.
func Same(a, b []byte) bool {
	var values [2]any
	for i, text := range [][]byte{a, b} {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber() // no number is too large
		_ = d.Decode(&values[i])
	}
	return reflect.DeepEqual(values[0], values[1])
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
