package netconf

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
)

// Decode parses data, the configuration that a plugin reads from stdin, into a T
// as [json.Unmarshal] does. T may have fields of type [Network] and [Plugin].
//
// Decode fails with [ErrDecode] when data is not exactly one JSON object, has a
// key twice, or does not fit T, and as [Parse] does for a Network or Plugin in
// it. It fails with [ErrInvalid] when data is nested more deeply than 1,000 levels.
// The [*Error] names the network, and the key if it is known, such as "delegates[1]".
// Decode returns the zero T with an error.
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

// locate makes an *Error of err, a failure to decode the JSON data into the value that v
// points to. Its key is the path in data, with the keys as data has them. It is not
// generic, so that there is one copy of it for all types.
func locate(data []byte, v any, err error) error {
	e := *asError(err, ErrDecode)
	t := reflect.TypeOf(v)
	if t == nil || t.Kind() != reflect.Pointer {
		return &e
	}
	switch path := place(data, t.Elem(), err); {
	case !errors.As(err, new(*json.UnmarshalTypeError)):
		e.Key = joinKey(path, e.Key)
	case path != "": // encoding/json names fields of Go, and neither indices nor keys of maps
		e.Key = path
	}
	return &e
}

// place returns the path of the value in raw because of which a t cannot be decoded, as far
// as it can be told from outside of types that decode themselves.
func place(raw json.RawMessage, t reflect.Type, err error) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return ""
	}
	switch jsonKind(raw) {
	case "an object":
		keys := splitObject(raw)
		for _, key := range keys.sorted() {
			if of := member(t, key); of != nil && failsWith(err, keys[key], of) {
				return joinKey(key, place(keys[key], of, err))
			}
		}
	case "an array":
		if t.Kind() != reflect.Slice && t.Kind() != reflect.Array {
			return ""
		}
		var elements []json.RawMessage
		_ = json.Unmarshal(raw, &elements) // cannot fail: it is an array
		for i, element := range elements {
			if failsWith(err, element, t.Elem()) {
				return joinKey(fmt.Sprintf("[%d]", i), place(element, t.Elem(), err))
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

// failsWith reports whether raw cannot be decoded into a t because of err.
func failsWith(err error, raw json.RawMessage, t reflect.Type) bool {
	failed := json.Unmarshal(raw, reflect.New(t).Interface())
	var want, got *json.UnmarshalTypeError
	if errors.As(err, &want) && errors.As(failed, &got) {
		return want.Value == got.Value && want.Type == got.Type
	}
	return failed != nil && failed.Error() == err.Error()
}
