package netconf

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
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
	var parts []string
	if e.Kind != nil {
		parts = append(parts, e.Kind.Error())
	} else {
		parts = append(parts, "cannot read configuration")
	}
	var where []string
	for _, field := range []struct{ name, value string }{{"file", e.File}, {"network", e.Network}, {"key", e.Key}} {
		if field.value != "" {
			where = append(where, fmt.Sprintf("%s %q", field.name, field.value))
		}
	}
	if len(where) > 0 {
		parts = append(parts, strings.Join(where, ", "))
	}
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}
	return strings.Join(parts, ": ")
}

// Unwrap returns the Kind and the cause, as far as there are any.
func (e *Error) Unwrap() []error {
	var errs []error
	for _, err := range []error{e.Kind, e.Err} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
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

// An unfound is why a search found no network.
type unfound struct {
	misnamed string  // which file is called like the network, and defines another
	own      error   // the first of bad that is about the network, if one is
	bad      []error // what is wrong with files
}

// add adds what is wrong with a file to the search for the network called name.
func (u *unfound) add(err error, name string) {
	u.bad = append(u.bad, err)
	if e := asError(err, nil); u.own == nil && (e.Network == name || called(e.File, name)) {
		u.own = err
	}
}

// Error tells of one bad file only: the others are rarely the reason.
func (u *unfound) Error() string {
	var parts []string
	if u.misnamed != "" {
		parts = append(parts, u.misnamed)
	}
	switch n := len(u.bad); {
	case u.own != nil:
		parts = append(parts, u.own.Error())
	case n == 1:
		parts = append(parts, "1 bad file: "+u.bad[0].Error())
	case n > 1:
		parts = append(parts, strconv.Itoa(n)+" bad files, the first: "+u.bad[0].Error())
	}
	return strings.Join(parts, "; ")
}

func (u *unfound) Unwrap() []error { return u.bad }

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

// decodeError makes an *Error of what encoding/json returned, or nil of nil. An
// *Error that an UnmarshalJSON of this package returned is kept.
func decodeError(err error) error {
	if err == nil {
		return nil
	}
	return asError(err, ErrDecode)
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
	if reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return "a string"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "a boolean"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	if reflect.Int <= t.Kind() && t.Kind() <= reflect.Uint64 {
		return fmt.Sprintf("a whole number of %d bits", t.Bits())
	}
	return ""
}
