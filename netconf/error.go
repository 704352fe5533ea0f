package netconf

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/fault"
)

// The kinds of [Error], for [errors.Is].
var (
	// ErrDecode is returned when a configuration is not the JSON expected.
	// CNI code 6.
	ErrDecode = errors.New("cannot decode configuration")

	// ErrInvalid is returned when a configuration has a key missing, forbidden
	// or with a value that is not allowed. CNI code 7.
	ErrInvalid = errors.New("invalid configuration")

	// ErrNotFound is returned when there is no network of the name, or no
	// file, that was asked for. CNI code 7.
	ErrNotFound = errors.New("no such network")
)

// An Error says which part of which configuration is wrong. It is the only type
// of error that this package returns. Its text quotes names and keys, never
// other values of the configuration: they may be secret.
type Error struct {
	Kind    error  // ErrDecode, ErrInvalid, ErrNotFound, or nil: cannot be read
	File    string // file it came from, if any
	Network string // network name, if known
	Key     string // offending key with its path, as in "plugins[1].ipam.type", if one
	Err     error  // cause, if any

	code uint // what CNICode reports instead of the Kind's
}

// Error describes the failure in one line.
func (e *Error) Error() string {
	text := "cannot read configuration"
	if e.Kind != nil {
		text = e.Kind.Error()
	}
	separator := ": "
	for _, field := range []struct{ name, value string }{{"file", e.File}, {"network", e.Network}, {"key", e.Key}} {
		if field.value != "" {
			text += fmt.Sprintf("%s%s %q", separator, field.name, field.value)
			separator = ", "
		}
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the Kind and the cause, as far as there are any.
func (e *Error) Unwrap() []error {
	return slices.DeleteFunc([]error{e.Kind, e.Err}, func(err error) bool { return err == nil })
}

// CNICode reports the CNI error code for e (SPEC section "Error"): 6 for
// [ErrDecode], 5 where a file cannot be read, and 7 otherwise. An error of a caller's
// own [Edit], or UnmarshalJSON, keeps the code that it came with.
func (e *Error) CNICode() uint {
	switch {
	case e.code != 0:
		return e.code
	case e.Kind == nil:
		return types.ErrIOFailure
	case errors.Is(e.Kind, ErrDecode):
		return types.ErrDecodingFailure
	}
	return types.ErrInvalidNetworkConfig
}

// unfound is why a search for the network called name has found none: the errors of bad files.
// Its text tells of one of them only, the others are rarely the reason.
type unfound struct {
	text string
	bad  []error
}

func (u *unfound) Error() string   { return u.text }
func (u *unfound) Unwrap() []error { return u.bad }

// notFound is the error of a search for the network called name. misnamed says which file is
// called like the network and defines another, if one does.
func notFound(name, misnamed string, bad []error) error {
	if misnamed == "" && len(bad) == 0 {
		return &Error{Kind: ErrNotFound, Network: name}
	}
	var texts []string
	if misnamed != "" {
		texts = append(texts, misnamed)
	}
	own := slices.IndexFunc(bad, func(err error) bool {
		e := asError(err, nil)
		return e.Network == name || called(e.File, name)
	})
	switch {
	case own >= 0:
		texts = append(texts, bad[own].Error())
	case len(bad) == 1:
		texts = append(texts, "1 bad file: "+bad[0].Error())
	case len(bad) > 1:
		texts = append(texts, fmt.Sprintf("%d bad files, the first: %v", len(bad), bad[0]))
	}
	return &Error{Kind: ErrNotFound, Network: name, Err: &unfound{strings.Join(texts, "; "), bad}}
}

// under returns err, an *Error or nil, with prefix before its key.
func under(prefix string, err error) error {
	return amend(err, func(e *Error) { e.Key = joinKey(prefix, e.Key) })
}

// inNetwork returns err, an *Error or nil, with the network's name where it has
// none yet.
func inNetwork(name string, err error) error {
	return amend(err, func(e *Error) {
		if e.Network == "" {
			e.Network = name
		}
	})
}

// amend returns a changed copy of err, which is an *Error or nil.
func amend(err error, change func(*Error)) error {
	if err == nil {
		return nil
	}
	c := *asError(err, ErrInvalid)
	change(&c)
	return &c
}

// joinKey joins the parts of a path.
func joinKey(prefix, key string) string {
	if prefix == "" || key == "" || key[0] == '[' {
		return prefix + key
	}
	return prefix + "." + key
}

// asError returns err if it is an *Error, or else wraps it in one of the kind
// it has in its chain, or the given kind. A CNI code in its chain is kept.
func asError(err error, kind error) *Error {
	if e, ok := err.(*Error); ok { //nolint:errorlint // a wrapped one keeps its wrapping
		return e
	}
	e := &Error{Kind: kind, Err: err}
	for _, k := range []error{ErrDecode, ErrInvalid, ErrNotFound} {
		if errors.Is(err, k) {
			e.Kind = k
			break
		}
	}
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) {
		e.Key = mismatch.Field
	}
	if m, ok := err.(*json.UnmarshalTypeError); ok { //nolint:errorlint // a wrapped one keeps its wrapping
		e.Err = typeError{m}
	}
	e.code = fault.Code(err, 0)
	return e
}

// A typeError is an error of encoding/json in words about JSON. It does not quote the
// value, as the text of encoding/json does for some numbers.
type typeError struct{ err *json.UnmarshalTypeError }

func (e typeError) Unwrap() error { return e.err }

func (e typeError) Error() string {
	have, _, _ := strings.Cut(e.err.Value, " ")
	have = map[string]string{
		"array": "an array", "bool": "a boolean", "number": "a number", "object": "an object", "string": "a string",
	}[have]
	want := jsonTypeOf(e.err.Type)
	if have == "" || want == "" {
		return e.err.Error()
	}
	return have + ", want " + want
}

// jsonTypeOf returns the JSON type of which encoding/json makes a t, or nothing if that
// is not known.
func jsonTypeOf(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch k := t.Kind(); {
	case k == reflect.String || reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return "a string"
	case k == reflect.Bool:
		return "a boolean"
	case k == reflect.Slice || k == reflect.Array:
		return "an array"
	case k == reflect.Map || k == reflect.Struct:
		return "an object"
	case k == reflect.Float32 || k == reflect.Float64:
		return "a number"
	case reflect.Int <= k && k <= reflect.Uint64:
		return fmt.Sprintf("a whole number of %d bits", t.Bits())
	}
	return ""
}
