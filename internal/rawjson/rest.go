package rawjson

import (
	"cmp"
	"encoding/json"
	"iter"
	"reflect"
	"slices"
	"strings"
)

// A Rest has the members of a JSON object that a struct has no field for, in their order and as
// they were written. A release that reads a file keeps in it what a later release has written
// there. Rests can be compared with ==, and the zero Rest is empty.
//
// A type that is read and written again has a Rest and two methods:
//
//	type entry struct {
//		Name string `json:"name"`
//		rest rawjson.Rest
//	}
//
//	func (e *entry) UnmarshalJSON(text []byte) error {
//		type plain entry
//		return rawjson.Decode(text, (*plain)(e), &e.rest)
//	}
//
//	func (e entry) MarshalJSON() ([]byte, error) {
//		type plain entry
//		return rawjson.Encode(plain(e), e.rest)
//	}
type Rest string

// Decode is [json.Unmarshal] of object into the struct that v points to, which embeds no other, and
// sets rest to the members that are not decoded. As for encoding/json, keys match in upper and lower
// case.
func Decode(object []byte, v any, rest *Rest) error {
	if err := json.Unmarshal(object, v); err != nil {
		return err
	}
	*rest = ""
	known := keys(reflect.TypeOf(v).Elem())
	for key, member := range members(object) {
		same := func(name string) bool { return name == string(key[1:len(key)-1]) }
		folded := func(name string) bool { return strings.EqualFold(name, Unquote(key)) }
		if !slices.ContainsFunc(known, same) && !slices.ContainsFunc(known, folded) {
			rest.add(member)
		}
	}
	return nil
}

// keys returns the keys of a struct of type t.
func keys(t reflect.Type) []string {
	known := make([]string, 0, t.NumField())
	for i := range t.NumField() {
		f := t.Field(i)
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); f.IsExported() && name != "-" {
			known = append(known, cmp.Or(name, f.Name))
		}
	}
	return known
}

// Encode is [Marshal] of v, a struct, with the members of rest at the end. A key is either one
// of v or one of rest.
func Encode(v any, rest Rest) ([]byte, error) {
	text, err := Marshal(v)
	if err != nil || rest == "" {
		return text, err
	}
	all := Rest(text[1 : len(text)-1])
	all.add([]byte(rest))
	return []byte("{" + all + "}"), nil
}

// With returns r with the members of later, which replace those of r with the same key. It is for
// an object that is written in parts.
func (r Rest) With(later Rest) Rest {
	if r == "" || later == "" {
		return r + later
	}
	var all Rest
	for key, member := range members([]byte("{" + r + "}")) {
		again := false
		for other := range members([]byte("{" + later + "}")) {
			again = again || Unquote(other) == Unquote(key)
		}
		if !again {
			all.add(member)
		}
	}
	all.add([]byte(later))
	return all
}

func (r *Rest) add(members []byte) {
	if *r != "" && len(members) > 0 {
		*r += ","
	}
	*r += Rest(members)
}

// members yields the keys of an object, which is valid JSON, as they are written, and the text of
// each member. It yields nothing for null.
func members(object []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, member []byte) bool) {
		s := Scan(object)
		if s.Space() != '{' {
			return
		}
		for s.Next() {
			s.Space()
			start := s.at
			key := s.Key()
			s.Value()
			if !yield(key, object[start:s.at]) {
				return
			}
		}
	}
}
