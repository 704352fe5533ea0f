package netconf

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/metacni/metacni/internal/bounds"
	"github.com/metacni/metacni/internal/rawjson"
)

// An object is a JSON object with its values as they were written, but for
// white space.
type object map[string]json.RawMessage

// parseObject parses data, which must be one JSON object, strictly.
func parseObject(data []byte) (object, error) {
	if err := checkObject(data); err != nil {
		return nil, err
	}
	return splitObject(data), nil
}

// checkObject fails with ErrDecode unless data is one JSON object in UTF-8 with
// no key twice, in it or in any other.
func checkObject(data []byte) error {
	if err := checkJSON(data); err != nil {
		return err
	}
	return checkKind(data, "", "an object")
}

// splitObject takes apart data, for which checkObject has nothing to say.
func splitObject(data []byte) object {
	keys := object{}
	for s := rawjson.Scan(compact(data)); s.Next(); {
		key := rawjson.Unquote(s.Key())
		keys[key] = s.Value()
	}
	return keys
}

// checkBounds fails with ErrInvalid if data, which comes from outside, is larger than
// size, or nested too deeply.
func checkBounds(data []byte, size int) error {
	switch {
	case len(data) > size:
		return &Error{Kind: ErrInvalid, Err: bounds.Above(size)}
	case bounds.Deeper(data, bounds.Depth):
		return &Error{Kind: ErrInvalid, Err: fmt.Errorf("nested more deeply than %d levels", bounds.Depth)}
	}
	return nil
}

// checkJSON fails with ErrDecode unless data is one JSON value in UTF-8 with no
// key twice in any of its objects.
func checkJSON(data []byte) error {
	if !utf8.Valid(data) {
		return &Error{Kind: ErrDecode, Err: errors.New("not UTF-8")}
	}
	if !json.Valid(data) {
		return asError(position(data, json.Unmarshal(data, new(json.RawMessage))), ErrDecode)
	}
	s := rawjson.Scan(data)
	if key := repeatedKey(&s); key != "" {
		return &Error{Kind: ErrDecode, Key: key, Err: errors.New("given twice")}
	}
	return nil
}

// repeatedKey reads one value and returns the path of a key that occurs twice
// in an object, or "".
func repeatedKey(s *rawjson.Scanner) string {
	switch s.Space() {
	case '{':
		seen := make(map[string]bool)
		for s.Next() {
			key := rawjson.Unquote(s.Key())
			if seen[key] {
				return cmp.Or(key, `""`)
			}
			seen[key] = true
			if inner := repeatedKey(s); inner != "" {
				return joinKey(key, inner)
			}
		}
	case '[':
		for i := 0; s.Next(); i++ {
			if inner := repeatedKey(s); inner != "" {
				return joinKey(fmt.Sprintf("[%d]", i), inner)
			}
		}
	default:
		s.Value()
	}
	return ""
}

// position adds to a syntax error where in data it is.
func position(data []byte, err error) error {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return err
	}
	read := data[:min(max(int(syntax.Offset), 0), len(data))]
	line := bytes.Count(read, []byte("\n")) + 1
	column := len(read) - (bytes.LastIndexByte(read, '\n') + 1)
	return fmt.Errorf("line %d, column %d: %w", line, column, err)
}

// decodeAs decodes raw, the valid JSON of key, into the value v points to, when
// it is of the JSON type want, or else fails with ErrDecode.
func decodeAs(raw json.RawMessage, key, want string, v any) error {
	if err := checkKind(raw, key, want); err != nil {
		return err
	}
	if s, ok := v.(*string); ok {
		*s = rawjson.Unquote(raw)
		return nil
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return under(key, asError(err, ErrDecode))
	}
	return nil
}

// checkKind fails with ErrDecode unless raw, the valid JSON of key, is of the
// type want.
func checkKind(raw []byte, key, want string) error {
	if have := jsonKind(raw); have != want {
		return &Error{Kind: ErrDecode, Key: key, Err: fmt.Errorf("%s, want %s", have, want)}
	}
	return nil
}

// jsonKind names the type of a valid JSON value.
func jsonKind(raw json.RawMessage) string {
	raw = bytes.TrimLeft(raw, " \t\r\n")
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

// isNull reports whether raw is the JSON null.
func isNull(raw []byte) bool { return string(bytes.TrimSpace(raw)) == "null" }

// compact returns a copy of raw, which is valid JSON, without white space.
func compact(raw json.RawMessage) json.RawMessage {
	var out bytes.Buffer
	out.Grow(len(raw))
	_ = json.Compact(&out, raw) // cannot fail: raw is valid
	return out.Bytes()
}

// encodeString writes s as JSON.
func encodeString(s string) json.RawMessage {
	raw, _ := rawjson.Marshal(s) // cannot fail: every string has a JSON form
	return raw
}

// inAnyCase returns the value of a key of a plugin, which libcni reads in upper and lower
// case. It fails if there are two.
func (o object) inAnyCase(key string) (raw json.RawMessage, ok bool, err error) {
	for name, value := range o {
		if !strings.EqualFold(name, key) {
			continue
		}
		if ok {
			return nil, false, &Error{Kind: ErrDecode, Key: key, Err: errors.New("given twice, in upper and lower case")}
		}
		raw, ok = value, true
	}
	return raw, ok, nil
}

// set stores raw in place of the value of key in any case.
func (o object) set(key string, raw json.RawMessage) {
	maps.DeleteFunc(o, func(name string, _ json.RawMessage) bool { return strings.EqualFold(name, key) })
	o[key] = raw
}

// get returns a copy of the value of key.
func (o object) get(key string) (json.RawMessage, bool) {
	raw, ok := o[key]
	return bytes.Clone(raw), ok
}

// shallow returns a copy of o that shares the values, with room for a few more.
func (o object) shallow() object {
	c := make(object, len(o)+4)
	maps.Copy(c, o)
	return c
}

// clone returns a copy of o that shares nothing.
func (o object) clone() object {
	c := make(object, len(o)+4)
	for key, raw := range o {
		c[key] = bytes.Clone(raw)
	}
	return c
}

// sorted returns the keys of o in order.
func (o object) sorted() []string {
	return slices.Sorted(maps.Keys(o))
}

// size returns about how many bytes marshal writes.
func (o object) size() int {
	size := 2
	for key, raw := range o {
		size += len(key) + len(raw) + 4
	}
	return size
}

// marshal writes o with sorted keys.
func (o object) marshal() json.RawMessage {
	raw, _ := rawjson.Marshal(o) // cannot fail: the values are valid
	return raw
}

// nameForErrors is what the object gives as its name, if it is a string.
func (o object) nameForErrors() string {
	if jsonKind(o["name"]) != "a string" {
		return ""
	}
	return rawjson.Unquote(o["name"])
}
