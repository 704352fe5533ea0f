package netconf

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/metacni/metacni/internal/rawjson"
)

// An Edit changes the keys of a configuration object in place. Until it returns it
// may change the map and its values. When it returns, each value must be valid
// JSON; a nil value means null. When an edit fails, the object stays unchanged.
//
// Keys match in upper and lower case, as in the plugins that read them. Where an edit below
// stores a value, it replaces all spellings of the key by its own.
//
// Edits compose. A program can write its own, with the same rights as those below.
// A nil Edit changes nothing. Goroutines may share the edits of this package.
//
// An error that is not an [*Error] is wrapped in one with [ErrInvalid]; it
// keeps the CNI code it reports by a method CNICode() uint, if any.
type Edit func(keys map[string]json.RawMessage) error

// Set stores value, as JSON, under key, in place of any other value. It fails with
// [ErrInvalid] when key is empty, value is nil (there is [Remove]), or value
// has no JSON form.
func Set(key string, value any) Edit {
	return func(keys map[string]json.RawMessage) error {
		if key == "" {
			return &Error{Kind: ErrInvalid, Err: errors.New("empty key")}
		}
		if value == nil {
			return &Error{Kind: ErrInvalid, Key: key, Err: errors.New("no value to set")}
		}
		raw, err := rawjson.Marshal(value)
		if err != nil {
			return &Error{Kind: ErrInvalid, Key: key, Err: err}
		}
		object(keys).set(key, raw)
		return nil
	}
}

// Default is [Set] for a key that is absent. It leaves a key that is there,
// whatever its value.
func Default(key string, value any) Edit {
	set := Set(key, value)
	return func(keys map[string]json.RawMessage) error {
		if _, ok, err := object(keys).find(key); ok || err != nil {
			return err
		}
		return set(keys)
	}
}

// Remove deletes names; those that are absent are ignored.
func Remove(names ...string) Edit {
	return func(keys map[string]json.RawMessage) error {
		for _, name := range names {
			object(keys).remove(name)
		}
		return nil
	}
}

// Forbid fails with [ErrInvalid], naming the key, when one of names is there.
func Forbid(names ...string) Edit {
	return func(keys map[string]json.RawMessage) error {
		for _, key := range object(keys).sorted() {
			if slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, key) }) {
				return &Error{Kind: ErrInvalid, Key: key, Err: errors.New("must not be set by the user")}
			}
		}
		return nil
	}
}

// In applies edits to the object under key. An absent or null object counts as
// empty; In creates it when the edits leave a key in it. In fails with [ErrDecode]
// when the value of key is not an object. Errors of edits name the whole path,
// such as "ipam.type".
func In(key string, edits ...Edit) Edit {
	return func(keys map[string]json.RawMessage) error {
		if key == "" {
			return &Error{Kind: ErrInvalid, Err: errors.New("empty key")}
		}
		inner := object{}
		raw, present, err := object(keys).find(key)
		if present = present && raw != nil && !isNull(raw); present {
			inner, err = parseObject(raw)
			err = under(key, err)
		}
		if err != nil {
			return err
		}
		if inner, err = inner.edit(edits); err != nil {
			return under(key, err)
		}
		if present || len(inner) > 0 {
			object(keys).set(key, inner.marshal())
		}
		return nil
	}
}

// edit applies edits to a copy of o and returns it, with every value checked.
func (o object) edit(edits []Edit) (object, error) {
	edited := o.clone()
	for _, edit := range edits {
		if edit == nil {
			continue
		}
		if err := edit(edited); err != nil {
			return nil, asError(err, ErrInvalid)
		}
	}
	// Copied, in case an edit keeps the map or a value and changes it later.
	checked := make(object, len(edited))
	for _, key := range edited.sorted() {
		raw := edited[key]
		if raw == nil {
			raw = json.RawMessage("null")
		}
		if !utf8.ValidString(key) {
			return nil, &Error{Kind: ErrDecode, Key: key, Err: errors.New("not UTF-8")}
		}
		if err := checkJSON(raw); err != nil {
			return nil, under(key, err)
		}
		checked[key] = compact(raw)
	}
	return checked, nil
}
