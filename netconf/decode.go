package netconf

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
)

// Decode parses data, the configuration that a plugin reads from stdin, into a T
// as [json.Unmarshal] does. T may have fields of type [Network] and [Plugin].
//
// Decode fails with [ErrDecode] when data is not exactly one JSON object, has a
// key twice, or does not fit T, and as [Parse] does for a Network or Plugin in
// it. The [*Error] names the network, and the key if it is known, such as
// "delegates[1]". Decode returns the zero T with an error.
func Decode[T any](data []byte) (T, error) {
	var zero, v T
	if err := checkObject(data); err != nil {
		return zero, err
	}
	if err := json.Unmarshal(data, &v); err != nil {
		keys := splitObject(data)
		return zero, inNetwork(keys.nameForErrors(), locate(keys, new(T), err))
	}
	return v, nil
}

// locate makes an *Error of err, a failure to decode keys into a value such as v
// points to. Where encoding/json does not name the key, locate tries each key by
// itself. It is not generic, so that there is one copy of it for all types.
func locate(keys object, v any, err error) error {
	var mismatch *json.UnmarshalTypeError
	if _, whole := v.(json.Unmarshaler); whole || errors.As(err, &mismatch) {
		return decodeError(err)
	}
	same := func(key string, raw json.RawMessage) bool {
		tried := json.Unmarshal(object{key: raw}.marshal(), reflect.New(reflect.TypeOf(v).Elem()).Interface())
		return tried != nil && tried.Error() == err.Error()
	}
	for _, key := range keys.sorted() {
		if !same(key, keys[key]) {
			continue
		}
		var elements []json.RawMessage
		_ = json.Unmarshal(keys[key], &elements) // if it is no array, there are none
		for i, element := range elements {
			if same(key, slices.Concat(json.RawMessage{'['}, element, json.RawMessage{']'})) {
				return under(fmt.Sprintf("%s[%d]", key, i), decodeError(err))
			}
		}
		return under(key, decodeError(err))
	}
	return decodeError(err)
}
