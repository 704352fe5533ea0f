// Package override replaces keys of a JSON object by those of another one: keys of the
// runtime's configuration by the daemon's.
package override

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

var errNotObject = errors.New("not a JSON object")

// A member is a member of a JSON object, with its original text.
type member struct {
	name       string // the decoded key
	key, value []byte
}

// is reports whether encoding/json could take m and o for the same key.
func (m member) is(o member) bool { return strings.EqualFold(m.name, o.name) }

// An Override has the members that replace those of other objects.
type Override []member

// Apply returns the JSON object conf with its members replaced by those of over
// with the same name, without regard to case. A replaced member keeps its place,
// a new one comes last, and everything else keeps its text and order. Errors do
// not quote conf.
func (over Override) Apply(conf []byte) ([]byte, error) {
	all, err := Parse(conf)
	if err != nil {
		return nil, err
	}
	if len(over) == 0 {
		return conf, nil
	}
	out := make([]member, 0, len(all)+len(over))
	used := make([]bool, len(over))
	for _, m := range all {
		i := last(over, m)
		switch {
		case i < 0:
			out = append(out, m)
		case !used[i]:
			used[i] = true
			out = append(out, over[i])
		}
	}
	for i, m := range over {
		if !used[i] && last(over, m) == i {
			out = append(out, m)
		}
	}
	var b bytes.Buffer
	for i, m := range out {
		b.WriteByte("{,"[min(i, 1)])
		b.Write(m.key)
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// last returns the index of the last member of list with the name of m, which is
// the one that counts, or -1.
func last(list Override, m member) int {
	for i, o := range slices.Backward(list) {
		if o.is(m) {
			return i
		}
	}
	return -1
}

// Parse returns the members of the JSON object data. Errors do not quote it.
func Parse(data []byte) (Override, error) {
	if !json.Valid(data) {
		return nil, errNotObject
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errNotObject
	}
	var all []member
	for d.More() {
		before := d.InputOffset()
		t, err := d.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			return nil, errNotObject
		}
		key := bytes.TrimLeft(data[before:d.InputOffset()], ", \t\r\n")
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, errNotObject
		}
		all = append(all, member{name, key, value})
	}
	return all, nil
}
