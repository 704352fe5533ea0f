package scratch

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/internal/records"
)

// The value and a change may hold the words by which they are found.
func TestWordsOfTheFormatInValues(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`,"value":1}`, `{"a":0,"value":{}}`, `{"a":0,"change":{}}`, `\",\"value\":`, "}"} {
		s := Store[notes]{Dir: t.TempDir()}
		value, err := json.Marshal(map[string]any{"a": 1, "value": text, "change": map[string]any{"a": 1, "value": 2, "x": text}})
		ok(t, err)
		r := Record[notes]{Key: k1, State: Planned, Value: notes{All: []json.RawMessage{value}}}
		ok(t, under(s, "c1", func(l *Lock) error {
			err := s.Put(l, r)
			r.State, r.Value.noted = Added, value
			return errors.Join(err, s.Note(l, r))
		}))
		got, err := s.Get(k1)
		ok(t, err)
		if got.State != Added || len(got.Value.All) != 2 || string(got.Value.All[0]) != string(value) || string(got.Value.All[1]) != string(value) {
			t.Errorf("%s: %s %s", text, got.State, got.Value.All)
		}
	}
}

// notes are a value to which each note adds one.
type notes struct {
	All   []json.RawMessage
	noted json.RawMessage
}

func (n *notes) Noted() any {
	if n.noted == nil {
		return nil
	}
	return n.noted
}

func (n *notes) Make(text records.Change) error {
	if string(text) == `"refused"` {
		return errors.New("refused")
	}
	n.All = append(n.All, json.RawMessage(text))
	return nil
}

// Changes are made in the order in which they were noted. One that is refused or damaged
// is left out, with its state.
func TestNotedChangesCountInOrder(t *testing.T) {
	t.Parallel()
	s := Store[notes]{Dir: t.TempDir()}
	r := Record[notes]{Key: k1, State: Planned}
	noted := func(state State, text string) {
		t.Helper()
		r.State, r.Value.noted = state, json.RawMessage(text)
		ok(t, note(s, r))
	}
	ok(t, update(s, r))
	noted(Added, `"one"`)
	noted(Partial, `"two"`)
	noted(Deleting, `"refused"`)
	want := func(state State, all ...string) {
		t.Helper()
		got, err := s.Get(k1)
		ok(t, err)
		texts := []string{}
		for _, text := range got.Value.All {
			texts = append(texts, string(text))
		}
		if diff := cmp.Diff(all, texts); diff != "" || got.State != state {
			t.Errorf("%s (-want +got):\n%s", got.State, diff)
		}
	}
	want(Partial, `"one"`, `"two"`)
	path := filepath.Join(s.Dir, fileName(k1))
	data, err := os.ReadFile(path)
	ok(t, err)
	ok(t, os.WriteFile(path, bytes.Replace(data, []byte(`"one"`), []byte(`"0ne"`), 1), 0o600))
	want(Partial, `"two"`)
}
