// Package jsontest generates JSON with one wrong value, for tests.
package jsontest

import (
	"encoding/json"
	"maps"
	"slices"
)

// Variants returns text, valid JSON, with the value at each place replaced by
// values of every JSON type, and with each key of an object removed.
func Variants(text string) ([]string, error) {
	var root any
	if err := json.Unmarshal([]byte(text), &root); err != nil {
		return nil, err
	}
	var all []string
	keep := func() {
		variant, _ := json.Marshal(root) // decoded JSON can be encoded
		all = append(all, string(variant))
	}
	var visit func(v any, set func(any))
	visit = func(v any, set func(any)) {
		for _, other := range []any{
			nil, true, 7, -1.5, 1e300, "text", "",
			[]any{},
			[]any{nil},
			[]any{-1, 99, 0, 0},
			map[string]any{},
			map[string]any{"x": nil},
		} {
			set(other)
			keep()
		}
		set(v)
		switch v := v.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(v)) {
				was := v[key]
				visit(was, func(other any) { v[key] = other })
				delete(v, key)
				keep()
				v[key] = was
			}
		case []any:
			for i := range v {
				visit(v[i], func(other any) { v[i] = other })
			}
		}
	}
	visit(root, func(other any) { root = other })
	return all, nil
}
