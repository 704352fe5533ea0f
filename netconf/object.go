package netconf

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
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

// checkObject fails with ErrDecode unless data is one JSON object in UTF-8 in which
// no key has two values, in it or in any other object.
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

// checkJSON fails with ErrDecode unless data is one JSON value in UTF-8 in which no
// key of any object has two values.
func checkJSON(data []byte) error {
	if !utf8.Valid(data) {
		return &Error{Kind: ErrDecode, Err: errors.New("not UTF-8")}
	}
	if !json.Valid(data) {
		return asError(position(data, json.Unmarshal(data, new(json.RawMessage))), ErrDecode)
	}
	if key := repeated(data, false); key != "" {
		return &Error{Kind: ErrDecode, Key: key, Err: errTwoValues}
	}
	return nil
}

// errTwoValues: encoding/json would silently take the last value.
var errTwoValues = errors.New("given twice, with two values: remove one")

// Repeated returns the path of the first key in data that an object has twice with one value,
// or "". Parsers accept such a key, and their callers may warn of it: another program may not.
// Repeated returns "" for data that is not valid JSON.
func Repeated(data []byte) string {
	if !json.Valid(data) {
		return ""
	}
	return repeated(data, true)
}

// repeated is repeatedKey of data, which is valid JSON.
func repeated(data []byte, same bool) string {
	if distinct(data) {
		return ""
	}
	s, left := rawjson.Scan(data), toCompare*len(data)
	return repeatedKey(&s, same, &left)
}

// distinct reports whether the keys of each object in data, which is valid JSON, certainly differ, in
// upper and lower case too. It allocates nothing: each ADD has texts to look through.
func distinct(data []byte) bool {
	s := rawjson.Scan(data)
	return distinctKeys(&s)
}

func distinctKeys(s *rawjson.Scanner) bool {
	switch s.Space() {
	case '{':
		var seen [32][]byte // more are rare
		for n := 0; s.Next(); n++ {
			key := s.Key()
			special := func(r rune) bool { return r == '\\' || r >= utf8.RuneSelf }
			if n == len(seen) || bytes.ContainsFunc(key, special) {
				return false // nobody knows
			}
			if slices.ContainsFunc(seen[:n], func(other []byte) bool { return bytes.EqualFold(other, key) }) || !distinctKeys(s) {
				return false
			}
			seen[n] = key
		}
	case '[':
		for s.Next() {
			if !distinctKeys(s) {
				return false
			}
		}
	default:
		s.Value()
	}
	return true
}

// toCompare is how often a part of a text may be compared with another, because keys stand twice in
// values of keys that stand twice.
const toCompare = 16

// repeatedKey reads one value and returns the path of a key that occurs twice in an
// object, with one value if same, or else with two. It returns "" if there is none. When it has
// compared left bytes, values count as two.
func repeatedKey(s *rawjson.Scanner, same bool, left *int) string {
	switch s.Space() {
	case '{':
		seen := make(map[string]rawjson.Scanner) // at the value
		for s.Next() {
			key := rawjson.Unquote(s.Key())
			now := *s
			if before, ok := seen[key]; ok {
				a, b := before.Value(), now.Value()
				*left -= len(a) + len(b)
				if (*left >= 0 && rawjson.Same(a, b)) == same {
					return cmp.Or(key, `""`)
				}
			}
			seen[key] = *s
			if inner := repeatedKey(s, same, left); inner != "" {
				return joinKey(key, inner)
			}
		}
	case '[':
		for i := 0; s.Next(); i++ {
			if inner := repeatedKey(s, same, left); inner != "" {
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
	if at := len(read) - 1; at >= 0 && data[at] >= utf8.RuneSelf { // encoding/json names one byte of it
		r, _ := utf8.DecodeRune(data[at:])
		text := strings.Replace(err.Error(), strconv.QuoteRune(rune(data[at])), strconv.QuoteRune(r), 1)
		if strings.ContainsRune("“”„«»‘’", r) {
			text += `: the quotes of JSON are "`
		}
		err = errors.New(text)
	}
	before := read[:max(len(read)-1, 0)] // the last byte is the mistake
	line := bytes.Count(before, []byte("\n")) + 1
	column := len(read) - (bytes.LastIndexByte(before, '\n') + 1)
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
	err := checkSpelling(raw, v)
	if e := json.Unmarshal(raw, v); err == nil && e != nil {
		err = asError(e, ErrDecode)
	}
	return under(key, err)
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

// errSpelling is the error of a key in upper and lower case with two values.
var errSpelling = errors.New("given twice, in upper and lower case, with two values: remove one")

// find returns the value of key: of this spelling, or else of another in upper and lower case,
// as encoding/json does. It fails with ErrDecode if two spellings have two values.
func (o object) find(key string) (raw json.RawMessage, ok bool, err error) {
	raw, ok = o[key]
	for name, value := range o {
		switch {
		case name == key || !strings.EqualFold(name, key):
		case !ok:
			raw, ok = value, true
		case !rawjson.Same(raw, value):
			return nil, false, &Error{Kind: ErrDecode, Key: key, Err: errSpelling}
		}
	}
	return raw, ok, nil
}

// remove deletes key in any case.
func (o object) remove(key string) {
	maps.DeleteFunc(o, func(name string, _ json.RawMessage) bool { return strings.EqualFold(name, key) })
}

// set stores raw in place of the value of key in any case.
func (o object) set(key string, raw json.RawMessage) {
	o.remove(key)
	o[key] = raw
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
	raw, _, _ := o.find("name") // two names are none
	if jsonKind(raw) != "a string" {
		return ""
	}
	return rawjson.Unquote(raw)
}
