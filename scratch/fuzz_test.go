package scratch

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/records"
)

// Whatever is on disk, decode returns a record that a line of it says, of the
// right key, or ErrCorrupt.
func FuzzDecode(f *testing.F) {
	k := Key{Network: "net", ContainerID: "c1", IfName: "eth0"}
	one, err := encode(Record[any]{Key: k, State: Planned, Value: map[string]any{"a": 1.0}})
	if err != nil {
		f.Fatal(err)
	}
	two, err := encode(Record[any]{Key: k, State: Added, Created: time.Unix(1, 0), Value: []any{nil, "\n"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(one)
	f.Add(append(append(one, '\n'), two...))
	f.Add(append(one, two[:len(two)/2]...))
	f.Add([]byte{})
	f.Add([]byte("\n\n\n"))
	f.Add([]byte("0123456789abcdef "))
	f.Add([]byte("null"))
	f.Add(one[prefix : len(one)-1])
	f.Add([]byte(line(`{"version":2,"network":"net","container":"c1","ifname":"eth0","state":"added","created":"2024-01-02T03:04:05Z","updated":"2024-01-02T03:04:05Z","value":1}`)))
	f.Add([]byte(line(`{"version":3,"created":1}`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := decode[any]([]byte(line(string(data))), k); err == nil && r.Key != k {
			t.Errorf("with a fitting sum: %+v", r)
		}
		before := bytes.Clone(data)
		r, err := decode[any](data, k)
		if !bytes.Equal(before, data) {
			t.Error("the data was changed")
		}
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
				t.Error(err)
			}
			return
		}
		if r.Key != k || !r.State.valid() {
			t.Errorf("%+v", r)
		}
		said := false
		for line := range bytes.SplitSeq(data, []byte{'\n'}) {
			said = said || verify(line) == nil && bytes.Contains(line, []byte(r.State))
		}
		if !said {
			t.Error("no line says so")
		}
	})
}

// Two keys never share a file, names stay below the limit and cannot be
// anything but names, and they can be read back.
func FuzzNames(f *testing.F) {
	long := strings.Repeat("x", 190)
	f.Add("a-b", "c", "eth0", "a", "b-c", "eth0")
	f.Add("a", "b", "c@d", "a", "b", "c%40d")
	f.Add(long, long, "e", long+"x", long+"x", "e")
	f.Add("#"+strings.Repeat("0", 64), "..", "/", "", ".", "a@lock")
	f.Fuzz(func(t *testing.T, n1, c1, i1, n2, c2, i2 string) {
		a, b := Key{n1, c1, i1}, Key{n2, c2, i2}
		if checkKey(a) != nil {
			return
		}
		for _, name := range []string{fileName(a), records.LockName(a.ContainerID)} {
			if len(durable.TempPrefix+name) > 255 || strings.ContainsAny(name, "/\x00") || name[0] == '.' {
				t.Errorf("%q of %q", name, a)
			}
		}
		if _, ok := parseName(records.LockName(a.ContainerID)); ok {
			t.Errorf("lock %q could be a record", records.LockName(a.ContainerID))
		}
		if k, ok := parseName(fileName(a)); !ok || !sameFile(a, k) || fileName(k) != fileName(a) {
			t.Errorf("%q is read back as %q, %v", fileName(a), k, ok)
		}
		if checkKey(b) == nil && a != b && fileName(a) == fileName(b) {
			t.Errorf("%q and %q share a file", a, b)
		}
	})
}

// A file name that is understood is one that is made.
func FuzzParseName(f *testing.F) {
	for _, name := range []string{"c@net@eth0.json", "c@net@eth0.json.corrupt", "net@eth0.json", "c@n@%2F.json", "c@n@%2f.json", "@@.json", "#@x.json", "c@n@a@b.json", ".tmp-1", "c@lock"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		k, ok := parseName(name)
		if !ok {
			return
		}
		if err := checkStoredKey(k); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if made := fileName(k); made != name {
			t.Errorf("%q is read as %q, which has %q", name, k, made)
		}
	})
}
