package scratch

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What a later release has stored in a line, in a note too, is there after this one has written
// the record again, whether whole or as a note.
func TestUnknownKeysOfALineAreKept(t *testing.T) {
	t.Parallel()
	s := Store[notes]{Dir: t.TempDir()}
	r := Record[notes]{Key: k1, State: Planned}
	ok(t, update(s, r))
	path := filepath.Join(s.Dir, fileName(k1))
	last := func() string {
		t.Helper()
		data, err := os.ReadFile(path)
		ok(t, err)
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		return lines[len(lines)-1][prefix:]
	}
	whole := last()
	later := strings.Replace(whole, `"state":`, `"later":{"a":[ 1e400]},"other":"<",  "state":`, 1)
	noted := strings.Replace(whole[:strings.Index(whole, `"value"`)], `"state":"planned"`, `"state":"added","other":"noted"`, 1) + `"change":"one","more":null}`
	refused := strings.Replace(noted, `"one","more":null`, `"refused","more":1`, 1)
	ok(t, os.WriteFile(path, []byte(line(later)+line(noted)+line(refused)), 0o600))

	r, err := s.Get(k1)
	ok(t, err)
	r.State, r.Value.noted = Deleting, json.RawMessage(`"two"`)
	ok(t, note(s, r))
	r, err = s.Get(k1)
	ok(t, err)
	equal(t, "changes", len(r.Value.All), 2)
	ok(t, update(s, r))
	if got, want := last(), `,"later":{"a":[ 1e400]},"other":"noted","more":null}`; !strings.HasSuffix(got, want) {
		t.Errorf("%s, want at the end %s", got, want)
	}
	r, err = s.Get(k1)
	ok(t, err)
	r.Value.noted = nil
	ok(t, note(s, r)) // all of it may have changed
	if got := last(); !strings.Contains(got, `"other":"noted"`) {
		t.Error(got)
	}
	ok(t, del(s, k1))
}
