package scratch

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/metacni/metacni/internal/bounds"
	"github.com/metacni/metacni/internal/rawjson"
	"github.com/metacni/metacni/internal/records"
)

const (
	version = 2

	sumLen  = 16            // hexadecimal digits
	prefix  = sumLen + 1    // and a space
	maxLine = bounds.Record // of a record
	maxNote = 1 << 20       // what notes may add to it while something is removed
	maxFile = 4 * maxLine   // of what is read back
)

// errTooLarge means that a record could not be read back.
var errTooLarge = errors.New("the record cannot be stored")

// stored is the JSON of a line. It has a Value if it is a whole record, and a Change if it
// changes the record before it. They are of any type while they are written, and JSON when
// they have been read.
type stored[V any] struct {
	Version     int       `json:"version"`
	Network     string    `json:"network"`
	ContainerID string    `json:"container"`
	IfName      string    `json:"ifname"`
	State       State     `json:"state"`
	Created     time.Time `json:"created"`
	Updated     time.Time `json:"updated"`
	Value       V         `json:"value,omitempty"`
	Change      V         `json:"change,omitempty"`

	rest rawjson.Rest // which later releases have written
}

func (l *stored[V]) key() Key {
	return Key{Network: l.Network, ContainerID: l.ContainerID, IfName: l.IfName}
}

// encode returns the line for r, with its newline, after checking r.
func encode[T any](r Record[T]) ([]byte, error) {
	limit := maxLine
	if r.State == Deleting || r.State == Partial || r.State == Leftover {
		limit += maxNote // what is recorded of an ADD must never hinder a DEL
	}
	return encodeLine(r.Key, stored[any]{State: r.State, Created: r.Created, Value: &r.Value, rest: r.rest}, limit)
}

// encodeNote returns the line for what has changed in r, if the value says that, or
// else for all of it.
func encodeNote[T any](r Record[T]) ([]byte, error) {
	if v, ok := any(&r.Value).(records.Changer); ok {
		if noted := v.Noted(); noted != nil {
			return encodeLine(r.Key, stored[any]{State: r.State, Created: r.Created, Change: noted}, maxLine)
		}
	}
	return encode(r)
}

// encodeLine completes l, a line of the record of k, and returns it as at most limit bytes.
// It refuses a line that could not be read back. k has been checked.
func encodeLine(k Key, l stored[any], limit int) ([]byte, error) {
	if !l.State.valid() {
		return nil, fmt.Errorf("unknown state %q", string(l.State))
	}
	l.Version, l.Network, l.ContainerID, l.IfName = version, k.Network, k.ContainerID, k.IfName
	l.Updated = time.Now().UTC()
	if l.Created = l.Created.UTC(); l.Created.IsZero() {
		l.Created = l.Updated
	}
	text, err := rawjson.Encode(&l, l.rest)
	if err != nil {
		return nil, err
	}
	out := append(slices.Concat(make([]byte, prefix), text), '\n')
	switch {
	case len(out) > limit:
		return nil, fmt.Errorf("%w: %w", errTooLarge, bounds.Above(maxLine))
	case bounds.Deeper(out[prefix:], bounds.RecordDepth):
		return nil, fmt.Errorf("%w: nested more deeply than %d levels", errTooLarge, bounds.RecordDepth)
	}
	sum(out, out[prefix:len(out)-1])
	out[sumLen] = ' '
	return out, nil
}

// sum writes the sum of text to the beginning of dst.
func sum(dst, text []byte) {
	s := sha256.Sum256(text)
	hex.Encode(dst[:sumLen], s[:sumLen/2])
}

// decode returns the record of k in data, a file's content: its last good line
// that is a whole record, with the changes in the good lines after it. When
// there is none the error is ErrCorrupt, and ErrVersion when a later line is of
// another version. k may come from a file name.
func decode[T any](data []byte, k Key) (Record[T], error) {
	why := errors.New("empty")
	var changes []*stored[json.RawMessage] // the last first
	for len(data) > 0 {
		start := bytes.LastIndexByte(data, '\n') + 1
		text := data[start:]
		data = data[:max(start-1, 0)]
		if len(text) == 0 {
			continue
		}
		l, err := decodeLine(text, k)
		var v T
		if err == nil && l.Change == nil {
			err = json.Unmarshal(l.Value, &v)
		}
		switch {
		case errors.Is(err, ErrVersion):
			return Record[T]{}, err
		case err != nil:
			why = err
		case l.Change != nil:
			changes = append(changes, l)
		default:
			r := Record[T]{Key: l.key(), State: l.State, Created: l.Created, Updated: l.Updated, Value: v, rest: l.rest}
			for _, c := range slices.Backward(changes) {
				if v, ok := any(&r.Value).(records.Changer); ok && v.Make(records.Change(c.Change)) != nil {
					continue
				}
				r.State, r.Updated, r.rest = c.State, c.Updated, r.rest.With(c.rest)
			}
			return r, nil
		}
	}
	return Record[T]{}, corrupt(why)
}

func decodeLine(data []byte, k Key) (*stored[json.RawMessage], error) {
	if err := verify(data); err != nil {
		return nil, err
	}
	var l stored[json.RawMessage]
	if err := rawjson.Decode(data[prefix:], &l, &l.rest); err != nil || l.Version != version {
		return nil, unknown(data[prefix:], err)
	}
	switch {
	case checkKey(l.key()) != nil || !sameFile(l.key(), k):
		return nil, fmt.Errorf("it is the record of %q", l.key().String())
	case !l.State.valid():
		return nil, fmt.Errorf("unknown state %q", string(l.State))
	case l.Value == nil && l.Change == nil:
		return nil, errors.New("no value")
	}
	return &l, nil
}

// unknown returns why text, the JSON of a line that adds up, was not decoded:
// because of its version, which is another program's to read, or because of
// err.
func unknown(text []byte, err error) error {
	var v struct {
		Version *int64 `json:"version"`
	}
	if json.Unmarshal(text, &v) == nil && v.Version != nil && *v.Version != version {
		return fmt.Errorf("%w: it is of version %d, this program reads %d", ErrVersion, *v.Version, version)
	}
	if err == nil {
		err = errors.New("no version")
	}
	return err
}

// verify checks the sum of a line.
func verify(data []byte) error {
	if len(data) <= prefix || data[sumLen] != ' ' {
		return errors.New("not a record")
	}
	var want [sumLen]byte
	sum(want[:], data[prefix:])
	if !bytes.Equal(want[:], data[:sumLen]) {
		return errors.New("the checksum does not fit")
	}
	return nil
}

// corrupt makes ErrCorrupt of err. It keeps only err's text: what a value's
// own decoder returns must not be taken for an error of the store's.
func corrupt(err error) error { return fmt.Errorf("%w: %v", ErrCorrupt, err) } //nolint:errorlint // only its text
