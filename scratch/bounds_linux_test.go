package scratch

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/bounds"
	"github.com/metacni/metacni/internal/records"
)

// What is written can be read back: Put refuses everything else, and keeps the record
// that is there.
func TestPutRefusesWhatCannotBeReadBack(t *testing.T) {
	t.Parallel()
	s := Store[json.RawMessage]{Dir: t.TempDir()}
	nested := func(levels int) json.RawMessage {
		return json.RawMessage(strings.Repeat("[", levels) + strings.Repeat("]", levels))
	}
	deepest := nested(bounds.RecordDepth - 1) // the line is an object around it
	ok(t, putRecord(s, k1, Added, deepest))
	for name, v := range map[string]json.RawMessage{
		"too deep":             nested(bounds.RecordDepth),
		"deeper than can be":   nested(9_999),
		"too large":            json.RawMessage(`"` + strings.Repeat("x", bounds.Record) + `"`),
		"both, and a valid id": json.RawMessage(`[{"id":"c1"},` + string(nested(5_000)) + `,"` + strings.Repeat("x", bounds.Record) + `"]`),
	} {
		err := putRecord(s, k1, Added, v)
		if code(err) != 7 || !strings.Contains(fmt.Sprint(err), "cannot be stored") {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := s.Get(k1); string(got.Value) != string(deepest) || err != nil {
			t.Errorf("%s: then %d bytes, %v", name, len(got.Value), err)
		}
	}
}

// The record of an ADD never is too large for the notes of its undo and of its DEL.
func TestLargestRecordCanBeNotedWhileItIsRemoved(t *testing.T) {
	t.Parallel()
	for _, state := range []State{Partial, Deleting, Leftover} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			largest := strings.Repeat("x", maxLine-512)
			put(t, s, k1, largest)
			longer := largest + strings.Repeat("x", 4096)
			if err := note(s, Record[value]{Key: k1, State: Added, Value: value{longer}}); code(err) != 7 {
				t.Errorf("added: %v", err)
			}
			ok(t, note(s, Record[value]{Key: k1, State: state, Value: value{longer}}))
			if got := text(s, k1); got != string(state)+" "+longer {
				t.Errorf("read back %.20q", got)
			}
		})
	}
}

// A counted value counts how often all of it is encoded.
type counted struct {
	Text  string
	whole *int
	noted any
}

func (c counted) MarshalJSON() ([]byte, error) {
	*c.whole++
	return json.Marshal(c.Text)
}

func (c *counted) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, &c.Text) }

func (c *counted) Noted() any { return c.noted }

func (c *counted) Make(records.Change) error { return nil }

// The cost of notes does not depend on the size of the record.
func TestNotesOfALargeRecordDoNotEncodeIt(t *testing.T) {
	t.Parallel()
	encoded := 0
	s := Store[counted]{Dir: t.TempDir()}
	r := Record[counted]{Key: k1, State: Planned, Value: counted{Text: strings.Repeat("x", 2*minCompact), whole: &encoded}}
	ok(t, update(s, r))
	ok(t, under(s, "c1", func(l *Lock) error {
		ok(t, s.Put(l, r))
		encoded = 0
		for i := range 100 {
			r.Value.noted = i
			ok(t, s.Note(l, r))
		}
		return nil
	}))
	if encoded != 0 {
		t.Errorf("encoded %d times by the process that wrote it", encoded)
	}
	ok(t, under(s, "c1", func(l *Lock) error {
		for i := range 100 {
			r.Value.noted = i
			ok(t, s.Note(l, r))
		}
		return nil
	}))
	if encoded != 1 {
		t.Errorf("encoded %d times by another process, want once, to know its length", encoded)
	}
}
