package scratch

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

const (
	version = 1
	sumLen  = 16          // hexadecimal digits
	prefix  = sumLen + 1  // and a space
	maxLine = 16 << 20    // of a record
	maxFile = 4 * maxLine // of what is read back
)

// An envelope is the JSON of one line.
type envelope[T any] struct {
	Version     int       `json:"version"`
	Network     string    `json:"network"`
	ContainerID string    `json:"container"`
	IfName      string    `json:"ifname"`
	State       State     `json:"state"`
	Created     time.Time `json:"created"`
	Updated     time.Time `json:"updated"`
	Value       T         `json:"value"`
}

func (e *envelope[T]) key() Key {
	return Key{Network: e.Network, ContainerID: e.ContainerID, IfName: e.IfName}
}

// encode returns the line for r, with its newline, after checking r.
func encode[T any](r Record[T]) ([]byte, error) {
	if err := checkKey(r.Key); err != nil {
		return nil, err
	}
	if !r.State.valid() {
		return nil, fmt.Errorf("unknown state %q", string(r.State))
	}
	now := time.Now().UTC()
	if r.Created.IsZero() {
		r.Created = now
	}
	var b bytes.Buffer
	b.Write(make([]byte, prefix))
	// Not json.Marshal: it would write < > and & in other ways than the user.
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(&envelope[T]{
		Version: version,
		Network: r.Key.Network, ContainerID: r.Key.ContainerID, IfName: r.Key.IfName,
		State: r.State, Created: r.Created.UTC(), Updated: now,
		Value: r.Value,
	})
	if err != nil {
		return nil, err
	}
	line := b.Bytes()
	if len(line) > maxLine {
		return nil, fmt.Errorf("a record of %d bytes, %d are the most", len(line), maxLine)
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

// decode returns the record in data, a file's content: its last good line. When
// there is none the error is ErrCorrupt. match tells whether a key is the one
// that belongs in the file.
func decode[T any](data []byte, match func(Key) bool) (Record[T], error) {
	why := errors.New("empty")
	for len(data) > 0 {
		start := bytes.LastIndexByte(data, '\n') + 1
		line := data[start:]
		data = data[:max(start-1, 0)]
		if len(line) == 0 {
			continue
		}
		r, err := decodeLine[T](line, match)
		if err == nil {
			return r, nil
		}
		why = err
	}
	return Record[T]{}, corrupt(why)
}

func decodeLine[T any](line []byte, match func(Key) bool) (Record[T], error) {
	env := new(envelope[T])
	if err := verify(line); err != nil {
		return Record[T]{}, err
	}
	switch err := json.Unmarshal(line[prefix:], env); {
	case err != nil && (env.Version == 0 || env.Version == version):
		return Record[T]{}, err
	case env.Version != version: // what else was wrong with it, its own reader knows
		return Record[T]{}, fmt.Errorf("unknown version %d", env.Version)
	case checkKey(env.key()) != nil || !match(env.key()):
		return Record[T]{}, fmt.Errorf("it is the record of %q", env.key().String())
	case !env.State.valid():
		return Record[T]{}, fmt.Errorf("unknown state %q", string(env.State))
	}
	return Record[T]{
		Key: env.key(), State: env.State, Created: env.Created, Updated: env.Updated, Value: env.Value,
	}, nil
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
