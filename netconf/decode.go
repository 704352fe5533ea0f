package netconf

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/metacni/metacni/internal/rawjson"
)

// Decode parses data, the configuration that a plugin reads from stdin, into a T
// as [json.Unmarshal] does. T may have fields of type [Network] and [Plugin].
//
// Decode fails with [ErrDecode] when data is not exactly one JSON object, has two values for a
// key, also in upper and lower case for one field of a struct, or does not fit T, and as [Parse] does for a Network or Plugin in
// it. It fails with [ErrInvalid] when data is nested more deeply than 1,000 levels.
// The [*Error] names the network, and the path of the key as data has it, such as
// "tenants.silver.type" or "delegates[1]". The path may end early if a type decodes
// itself, or if data is both large and deep. Decode returns the zero T with an error.
func Decode[T any](data []byte) (T, error) {
	var zero, v T
	if err := checkBounds(data, math.MaxInt); err != nil {
		return zero, err
	}
	if err := checkObject(data); err != nil {
		return zero, err
	}
	if err := unmarshal(data, &v); err != nil {
		return zero, inNetwork(splitObject(data).nameForErrors(), err)
	}
	return v, nil
}

// unmarshal is [json.Unmarshal] of data, which is valid JSON, after checkSpelling. It fails with
// ErrDecode.
func unmarshal(data []byte, v any) error {
	if err := checkSpelling(data, v); err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return locate(data, v, err)
	}
	return nil
}

// locate makes an *Error of err, a failure to decode the JSON data into the value that v
// points to. Its key is the path in data, with the keys as data has them. It is not
// generic, so that there is one copy of it for all types.
func locate(data []byte, v any, err error) error {
	e := *asError(err, ErrDecode)
	t := reflect.TypeOf(v)
	if t == nil || t.Kind() != reflect.Pointer {
		return &e
	}
	s := search{err: err, left: 8*len(data) + 1<<20}
	switch path := s.path(data, t.Elem()); {
	case !errors.As(err, new(*json.UnmarshalTypeError)):
		e.Key = joinKey(path, e.Key)
	case path != "": // encoding/json names fields of Go, and neither indices nor keys of maps
		e.Key = path
	}
	return &e
}

// A search looks for the value because of which decoding has failed with err. On each level
// it decodes the values one by one, until one fails likewise, and goes on in that one.
//
// A recursive type could make it decode nearly all of the data again on every level. So it
// stops after left bytes, and the path ends there.
type search struct {
	err  error
	left int
}

// path returns the path of the value in raw, a t, as far as it can be told from outside of
// types that decode themselves.
func (s *search) path(raw json.RawMessage, t reflect.Type) string {
	for p := range parts(raw, t) {
		if s.fails(p.value, p.t) {
			return joinKey(p.key, s.path(p.value, p.t))
		}
	}
	return ""
}

// A part is a value in another one.
type part struct {
	key   string // as data has it, or an index
	field string // of a struct, in lower case
	value json.RawMessage
	t     reflect.Type // into which encoding/json decodes it
}

// parts yields the parts of raw, a t, for which a t has a place. A type that decodes itself
// has none.
func parts(raw json.RawMessage, t reflect.Type) iter.Seq[part] {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return func(yield func(part) bool) {
		if t == nil {
			return
		}
		in, kind := rawjson.Scan(raw), t.Kind()
		open := in.Space()
		fits := open == '{' && (kind == reflect.Struct || kind == reflect.Map) || open == '[' && (kind == reflect.Slice || kind == reflect.Array)
		if !fits || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
			return
		}
		fields := make(map[string]reflect.Type)
		if kind == reflect.Struct {
			for _, field := range reflect.VisibleFields(t) {
				if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); field.IsExported() {
					fields[fold(cmp.Or(name, field.Name))] = field.Type
				}
			}
		}
		for i := 0; in.Next(); i++ {
			var p part
			if open == '{' {
				p.key = rawjson.Unquote(in.Key())
			} else {
				p.key = fmt.Sprintf("[%d]", i)
			}
			p.value = in.Value()
			if kind == reflect.Struct {
				p.field = fold(p.key)
				p.t = fields[p.field]
			} else {
				p.t = t.Elem()
			}
			if p.t != nil && !yield(p) {
				return
			}
		}
	}
}

// fold returns a text that is equal for keys which [strings.EqualFold] takes for equal.
func fold(key string) string { return strings.ToLower(strings.ToUpper(key)) }

// checkSpelling fails with ErrDecode if data, which is valid JSON, has two values for one field
// of the value that v points to, in upper and lower case. encoding/json would take the last.
func checkSpelling(data []byte, v any) error {
	if distinct(data) {
		return nil
	}
	if key := twoSpellings(data, reflect.TypeOf(v)); key != "" {
		return &Error{Kind: ErrDecode, Key: key, Err: errSpelling}
	}
	return nil
}

// twoSpellings returns the path of a key in raw, a t, that has two values in two spellings, or "".
func twoSpellings(raw json.RawMessage, t reflect.Type) string {
	var seen []part // few
	for p := range parts(raw, t) {
		switch i := slices.IndexFunc(seen, func(s part) bool { return s.field == p.field }); {
		case p.field == "":
		case i < 0:
			seen = append(seen, p)
		case !rawjson.Same(seen[i].value, p.value):
			return p.key
		}
		if inner := twoSpellings(p.value, p.t); inner != "" {
			return joinKey(p.key, inner)
		}
	}
	return ""
}

// fails reports whether raw cannot be decoded into a t because of s.err.
func (s *search) fails(raw json.RawMessage, t reflect.Type) bool {
	if s.left -= len(raw); s.left < 0 {
		return false
	}
	failed := json.Unmarshal(raw, reflect.New(t).Interface())
	var want, got *json.UnmarshalTypeError
	if errors.As(s.err, &want) && errors.As(failed, &got) {
		return want.Value == got.Value && want.Type == got.Type
	}
	return failed != nil && failed.Error() == s.err.Error()
}
