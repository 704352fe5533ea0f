package netconf

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"

	"github.com/metacni/metacni/internal/rawjson"
)

// Decode parses data, the configuration that a plugin reads from stdin, into a T
// as [json.Unmarshal] does. T may have fields of type [Network] and [Plugin].
//
// Decode fails with [ErrDecode] when data is not exactly one JSON object, has a
// key twice, or does not fit T, and as [Parse] does for a Network or Plugin in
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
	if err := json.Unmarshal(data, &v); err != nil {
		return zero, inNetwork(splitObject(data).nameForErrors(), locate(data, new(T), err))
	}
	return v, nil
}

// DecodeLenient is [Decode] for DEL, which must work even if somebody has broken the
// configuration after the ADD. It ignores keys given twice, and leaves out each key of
// data whose value does not fit T, a struct or a map. It fails, with [ErrDecode], only if
// data is not a JSON object.
func DecodeLenient[T any](data []byte) (T, error) {
	var zero, v T
	if jsonKind(data) != "an object" || !json.Valid(data) {
		return zero, checkObject(data) // says why
	}
	if json.Unmarshal(data, &v) == nil {
		return v, nil
	}
	v = zero
	for key, value := range rawjson.Members(data) {
		one := object{key: value}.marshal()
		if json.Unmarshal(one, new(T)) == nil {
			_ = json.Unmarshal(one, &v)
		}
	}
	return v, nil
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
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return ""
	}
	in := rawjson.Scan(raw)
	switch jsonKind(raw) {
	case "an object":
		for in.Next() {
			key := rawjson.Unquote(in.Key())
			value := in.Value()
			if of := member(t, key); of != nil && s.fails(value, of) {
				return joinKey(key, s.path(value, of))
			}
		}
	case "an array":
		if t.Kind() != reflect.Slice && t.Kind() != reflect.Array {
			return ""
		}
		for i := 0; in.Next(); i++ {
			if element := in.Value(); s.fails(element, t.Elem()) {
				return joinKey(fmt.Sprintf("[%d]", i), s.path(element, t.Elem()))
			}
		}
	}
	return ""
}

// member returns the type into which encoding/json decodes the value of key in a t, or nil.
func member(t reflect.Type, key string) reflect.Type {
	switch t.Kind() {
	case reflect.Map:
		return t.Elem()
	case reflect.Struct:
		for _, field := range reflect.VisibleFields(t) {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if field.IsExported() && strings.EqualFold(cmp.Or(name, field.Name), key) {
				return field.Type
			}
		}
	}
	return nil
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
