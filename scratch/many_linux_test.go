package scratch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/internal/durable"
)

// crowd fills s with records of 200 containers, every tenth of which is damaged. It returns what List says of each, in order.
func crowd(t *testing.T, s Store[value]) (want []string) {
	t.Helper()
	for r := range s.List(t.Context()) {
		t.Fatalf("%v is there", r.Key)
	}
	for i := range 200 {
		k := Key{"net", fmt.Sprintf("a%03d", i), "eth0"}
		r := Record[value]{Key: k, State: Added, Value: value{k.String()}}
		data, err := encodeRecord(r)
		ok(t, err)
		said := k.String()
		if i%10 == 3 {
			data, said = data[:len(data)/2], "corrupt"
		}
		ok(t, os.WriteFile(recordPath(s, k), data, 0o600))
		want = append(want, k.String()+" "+said)
	}
	return want
}

func said(r Record[value], err error) string {
	switch {
	case errors.Is(err, ErrCorrupt):
		return r.Key.String() + " corrupt"
	case err != nil:
		return err.Error()
	}
	return r.Key.String() + " " + r.Value.Text
}

// Several goroutines read many records. What List yields is the same, in the
// same order.
func TestListOfManyIsWholeAndInOrder(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	want := crowd(t, s)
	var got []string
	for r, err := range s.List(t.Context()) {
		got = append(got, said(r, err))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, n := range []int{1, 40, 199} {
		got = nil
		for r, err := range s.List(t.Context()) {
			if got = append(got, said(r, err)); len(got) == n {
				break
			}
		}
		if len(got) != n {
			t.Errorf("%d records, stopped after %d", len(got), n)
		}
	}
	for n := range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		got = nil
		for r, err := range s.List(ctx) {
			if got = append(got, said(r, err)); len(got) == 1+50*n {
				cancel()
			}
		}
		if len(got) != 2+50*n || !strings.Contains(got[len(got)-1], "context canceled") {
			t.Errorf("cancelled after %d: %d records, the last is %s", 1+50*n, len(got), got[len(got)-1])
		}
	}
}

// Select reads the wanted records alone, and those of which only a hash is known.
func TestSelectReadsOnlyWhatIsWanted(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	crowd(t, s)
	long := Key{"net", strings.Repeat("l", 100), "eth0"}
	other := Key{"net", strings.Repeat("o", 100), "eth0"}
	torn := Key{"net", strings.Repeat("t", 100), "eth0"}
	for _, k := range []Key{long, other, torn, k2} {
		put(t, s, k, k.String())
	}
	ok(t, os.WriteFile(recordPath(s, torn), nil, 0o600))
	var mu sync.Mutex
	read := make(map[string]bool)
	hook := durable.Hook(func(call, name string) error {
		mu.Lock()
		defer mu.Unlock()
		if call == "read" {
			read[name] = true
		}
		return nil
	})
	s.hook = &hook
	wanted := map[Key]bool{{"net", "a150", "eth0"}: true, {"net", "a033", "eth0"}: true, k2: true, long: true}
	var got []string
	for r, err := range s.Select(t.Context(), func(k Key) bool { return wanted[k] }) {
		got = append(got, said(r, err))
	}
	tornKey, _ := parseName(fileName(torn))
	want := []string{
		tornKey.String() + " corrupt", long.String() + " " + long.String(),
		"net/a033/eth0 corrupt", "net/a150/eth0 net/a150/eth0", k2.String() + " " + k2.String(),
	}
	if fileName(long) < fileName(torn) {
		want[0], want[1] = want[1], want[0]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if len(read) > 8 || read["a151@net@eth0.json"] { // those with a hash, and three
		t.Errorf("read %v", read)
	}
}

// A store's own Decode is used for values wherever they are read, and for nothing
// else. What it refuses is damaged.
func TestDecodeOfTheStore(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	put(t, s, k1, "good")
	put(t, s, k2, "bad")
	var seen []string
	s.Decode = func(text []byte, v *value) error {
		seen = append(seen, string(text))
		if strings.Contains(string(text), "bad") {
			return errors.New("refused")
		}
		v.Text = "decoded"
		return nil
	}
	if got := text(s, k1) + ", " + text(s, k2); got != "planned decoded, corrupt" {
		t.Error(got)
	}
	if diff := cmp.Diff([]string{`{"Text":"good"}`, `{"Text":"bad"}`}, seen); diff != "" {
		t.Error(diff)
	}
	var got []string
	for r, err := range s.List(t.Context()) {
		got = append(got, said(r, err))
	}
	if diff := cmp.Diff([]string{"net/c1/eth0 decoded", "net/c1/net1 corrupt"}, got); diff != "" {
		t.Error(diff)
	}
}

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
			r.State, r.Value.All = Added, append(r.Value.All, value)
			return errors.Join(err, s.NoteChange(l, r, json.RawMessage(value)))
		}))
		got, err := s.Get(k1)
		ok(t, err)
		if got.State != Added || len(got.Value.All) != 2 || string(got.Value.All[0]) != string(value) || string(got.Value.All[1]) != string(value) {
			t.Errorf("%s: %s %s", text, got.State, got.Value.All)
		}
	}
}

type notes struct{ All []json.RawMessage }

func (n *notes) Change(text json.RawMessage) error {
	n.All = append(n.All, text)
	return nil
}
