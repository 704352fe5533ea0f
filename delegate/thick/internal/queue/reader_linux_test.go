package queue

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// One daemon reads a queue at a time, whether it writes the mark, finds it, or finds
// that of a daemon with another Override, and also when the mark is taken away.
func TestOneReaderAtATime(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "queue")
	var last *Reader
	for _, override := range []string{`{"cniDir":"/a"}`, `{"cniDir":"/a"}`, `{"cniDir":"/b"}`} {
		first := &Reader{Queue: In(dir), Override: json.RawMessage(override)}
		second := &Reader{Queue: In(dir)}
		for range 2 {
			if _, odd, err := first.List(t.Context()); odd != nil || err != nil {
				t.Fatal(odd, err)
			}
			if _, _, err := second.List(t.Context()); !errors.Is(err, ErrOther) || code(t, err) != 11 {
				t.Errorf("the second: %v", err)
			}
			if got := string(In(dir).Override()); got != override {
				t.Errorf("the mark tells %s, want %s", got, override)
			}
		}
		first.Close()
		last = first
	}
	if _, _, err := last.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	ok(t, os.Remove(filepath.Join(dir, markName)))
	if _, _, err := last.List(t.Context()); err != nil {
		t.Error(err)
	}
	if _, _, err := In(dir).List(t.Context()); !errors.Is(err, ErrOther) {
		t.Errorf("after the mark was taken away: %v", err)
	}
	last.Close()
	mark(t, dir)
}

// A mark that is not a daemon's tells no Override.
func TestOverrideOfNobodyIsUnknown(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "queue")
	if got := In(dir).Override(); got != nil {
		t.Errorf("without a directory: %s", got)
	}
	mark(t, dir)
	for _, text := range []string{"", "A daemon", `{"override":`, "null"} {
		ok(t, os.WriteFile(filepath.Join(dir, markName), []byte(text), 0o600))
		if got := In(dir).Override(); got != nil {
			t.Errorf("%q: %s", text, got)
		}
	}
}

// A DEL of an attachment that was recorded at another time takes the place of the
// queued one: the queued one would not be done to it.
func TestPutReplacesTheDelOfAnEarlierAttachment(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	early := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	for _, recorded := range []time.Time{early, early.Add(1), {}, early} {
		r := request("c1")
		r.Recorded = recorded
		ok(t, In(dir).Put(t.Context(), r, away))
		got, err := In(dir).Read(nameOf(t, r))
		ok(t, err)
		if !got.Recorded.Equal(recorded) {
			t.Errorf("queued for %v, want %v", got.Recorded, recorded)
		}
	}
}
