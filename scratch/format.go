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

// An origin begins the JSON of every line.
type origin struct {
	Version     int    `json:"version"`
	Network     string `json:"network"`
	ContainerID string `json:"container"`
	IfName      string `json:"ifname"`
}

// A stage begins the JSON of a line that is or changes a record.
type stage struct {
	origin

	State   State     `json:"state"`
	Created time.Time `json:"created"`
	Updated time.Time `json:"updated"`
}

// A whole is the JSON of a line that is a record. The value is the last of it, see
// [split].
type whole[T any] struct {
	stage

	Value T `json:"value"`
}

// A changed is the JSON of a line that changes a record.
type changed struct {
	stage

	Change any `json:"change"`
}

func (o *origin) key() Key {
	return Key{Network: o.Network, ContainerID: o.ContainerID, IfName: o.IfName}
}

func originOf(k Key) origin {
	return origin{Version: version, Network: k.Network, ContainerID: k.ContainerID, IfName: k.IfName}
}

// encode returns the line for r, with its newline, after checking r.
func encode[T any](r Record[T]) ([]byte, error) {
	s, err := stageOf(r.Key, r.State, r.Created)
	if err != nil {
		return nil, err
	}
	limit := maxLine
	if r.State == Deleting || r.State == Partial || r.State == Leftover {
		limit += maxNote // what is recorded of an ADD must never hinder a DEL
	}
	return encodeLine(&whole[T]{s, r.Value}, limit)
}

// encodeNote returns the line for what has changed in r, if the value says that, or
// else for all of it.
func encodeNote[T any](r Record[T]) ([]byte, error) {
	var change any
	if v, ok := any(&r.Value).(records.Changer); ok {
		change = v.Noted()
	}
	if change == nil {
		return encode(r)
	}
	s, err := stageOf(r.Key, r.State, r.Created)
	if err != nil {
		return nil, err
	}
	return encodeLine(&changed{s, change}, maxLine)
}

func stageOf(k Key, state State, created time.Time) (stage, error) {
	if err := checkKey(k); err != nil {
		return stage{}, err
	}
	if !state.valid() {
		return stage{}, fmt.Errorf("unknown state %q", string(state))
	}
	now := time.Now().UTC()
	if created.IsZero() {
		created = now
	}
	return stage{origin: originOf(k), State: state, Created: created.UTC(), Updated: now}, nil
}

// encodeLine returns a line of at most limit bytes. It refuses one that could not be read
// back.
func encodeLine(v any, limit int) ([]byte, error) {
	var b bytes.Buffer
	b.Write(make([]byte, prefix))
	// Not json.Marshal: it would write < > and & in other ways than the user.
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	line := b.Bytes()
	switch {
	case len(line) > limit:
		return nil, fmt.Errorf("%w: %w", errTooLarge, bounds.Above(maxLine))
	case bounds.Deeper(line[prefix:], bounds.RecordDepth):
		return nil, fmt.Errorf("%w: nested more deeply than %d levels", errTooLarge, bounds.RecordDepth)
	}
	sum(line, line[prefix:len(line)-1])
	line[sumLen] = ' '
	return line, nil
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
	var changes []stored // the last first
	for len(data) > 0 {
		start := bytes.LastIndexByte(data, '\n') + 1
		line := data[start:]
		data = data[:max(start-1, 0)]
		if len(line) == 0 {
			continue
		}
		s, err := decodeLine(line, k)
		var v T
		if err == nil && !s.isChange {
			err = json.Unmarshal(s.text, &v)
		}
		switch {
		case errors.Is(err, ErrVersion):
			return Record[T]{}, err
		case err != nil:
			why = err
		case s.isChange:
			changes = append(changes, s)
		default:
			r := Record[T]{Key: s.key(), State: s.State, Created: s.Created, Updated: s.Updated, Value: v}
			for _, c := range slices.Backward(changes) {
				if v, ok := any(&r.Value).(records.Changer); ok && v.Make(records.Change(c.text)) != nil {
					continue
				}
				r.State, r.Updated = c.State, c.Updated
			}
			return r, nil
		}
	}
	return Record[T]{}, corrupt(why)
}

// A stored line has the JSON of a value or of a change.
type stored struct {
	stage
	text     []byte
	isChange bool
}

func decodeLine(line []byte, k Key) (s stored, err error) {
	if err := verify(line); err != nil {
		return s, err
	}
	text := line[prefix:]
	about, last, isChange := split(text)
	if err := json.Unmarshal(about, &s.stage); err != nil || s.Version != version {
		return s, unknown(text, err)
	}
	switch {
	case checkKey(s.key()) != nil || !sameFile(s.key(), k):
		return s, fmt.Errorf("it is the record of %q", s.key().String())
	case !s.State.valid():
		return s, fmt.Errorf("unknown state %q", string(s.State))
	case last == nil:
		return s, errors.New("no value")
	}
	s.text, s.isChange = last, isChange
	return s, nil
}

// split divides the JSON of a line into the object that says what the line is
// about, and the value or the change, which is the last of a line and the most
// of it. So each is decoded once, and only if it is asked for. A string cannot
// be taken for the key: the quotes in it are escaped.
func split(text []byte) (about, last []byte, isChange bool) {
	about = text
	for _, key := range []string{`,"value":`, `,"change":`} {
		// The first one that is there: the other may be in it.
		if i := bytes.Index(about, []byte(key)); i >= 0 {
			about, last, isChange = text[:i:i], text[i+len(key):], key == `,"change":`
		}
	}
	if last == nil || text[len(text)-1] != '}' {
		return text, nil, false
	}
	return append(about, '}'), last[:len(last)-1], isChange
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

// verify checks a line's sum.
func verify(line []byte) error {
	if len(line) <= prefix || line[sumLen] != ' ' {
		return errors.New("not a record")
	}
	var want [sumLen]byte
	sum(want[:], line[prefix:])
	if !bytes.Equal(want[:], line[:sumLen]) {
		return errors.New("the checksum does not fit")
	}
	return nil
}

// corrupt makes ErrCorrupt of err. It keeps only err's text: what a value's
// own decoder returns must not be taken for an error of the store's.
func corrupt(err error) error { return fmt.Errorf("%w: %v", ErrCorrupt, err) } //nolint:errorlint // only its text
