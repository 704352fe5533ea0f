package scratch

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/records"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

type value struct{ Text string }

var k1 = Key{Network: "net", ContainerID: "c1", IfName: "eth0"}

// check reads data as k1's file and returns what it says.
func check(data []byte) string {
	r, err := decode[value](data, k1)
	switch {
	case errors.Is(err, ErrCorrupt):
		return "corrupt"
	case errors.Is(err, ErrVersion):
		return "version"
	case errors.Is(err, fs.ErrNotExist):
		return "none"
	}
	if err != nil {
		return err.Error()
	}
	return string(r.State) + " " + r.Value.Text
}

// line makes a line with a fitting checksum.
func line(json string) string {
	b := append(make([]byte, prefix), json...)
	sum(b, b[prefix:])
	b[sumLen] = ' '
	return string(b) + "\n"
}

// A checksum is not enough: version, key, state and value have to fit too.
func TestLinesThatDoNotCount(t *testing.T) {
	t.Parallel()
	good := `{"version":2,"network":"net","container":"c1","ifname":"eth0","state":"planned","created":"2024-01-02T03:04:05Z","updated":"2024-01-02T03:04:05Z","value":{"Text":"x"}}`
	swap := func(old, new string) string {
		t.Helper()
		if !strings.Contains(good, old) {
			t.Fatal(old)
		}
		return strings.Replace(good, old, new, 1)
	}
	if got := check([]byte(line(good))); got != "planned x" {
		t.Fatal(got)
	}
	for _, tt := range []struct{ name, json, why string }{
		{"null", `null`, "no version"},
		{"list", `[]`, "cannot unmarshal array"},
		{"not JSON", `{`, "unexpected end"},
		{"two values", good + `{}`, "after top-level value"},
		{"no version", swap(`"version":2,`, ``), "no version"},
		{"version of another type", swap(`"version":2`, `"version":"1"`), "cannot unmarshal string"},
		{"another network", swap(`"net"`, `"ten"`), `"ten/c1/eth0"`},
		{"another interface", swap(`"eth0"`, `"eth1"`), `"net/c1/eth1"`},
		{"unknown state", swap(`"planned"`, `"done"`), `unknown state "done"`},
		{"no state", swap(`"state":"planned",`, ``), `unknown state ""`},
		{"bad time", swap(`2024-01-02T03:04:05Z`, `yesterday`), "parsing time"},
		{"value of another type", swap(`{"Text":"x"}`, `[]`), "cannot unmarshal array"},
		{"deep", strings.Repeat(`[`, 20_000), "exceeded max depth"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := decode[value]([]byte(line(tt.json)), k1)
			if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), tt.why) {
				t.Errorf("%v; want %q", err, tt.why)
			}
			// The line before it counts.
			if got := check([]byte(line(good) + line(tt.json))); got != "planned x" {
				t.Errorf("after a good line: %s", got)
			}
		})
	}
}

// Any value of a known type is read as it was written, at any time.
func TestDecodeUndoesEncode(t *testing.T) {
	t.Parallel()
	for i, v := range []string{"", "\n", "\x00", "é\u2028", `"\`, strings.Repeat("x", 100_000)} {
		r := Record[value]{Key: k1, State: Added, Created: time.Unix(int64(i)*1e9, 1).UTC(), Value: value{v}}
		data, err := encode(r)
		nodetest.OK(t, err)
		got, err := decode[value](data, k1)
		r.Updated = got.Updated
		if diff := cmp.Diff(r, got, cmp.AllowUnexported(r)); diff != "" || err != nil || bytes.Count(data, []byte{'\n'}) != 1 {
			t.Error(diff, err)
		}
	}
	if _, err := encode(Record[value]{Key: k1, State: Added, Created: time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)}); err == nil {
		t.Error("a year of five digits was written: " + fmt.Sprint(err))
	}
}

// A line of another version is neither damage nor passed over, whatever else is
// in it: an older line before it is not the record any more.
func TestUnknownVersionIsNotDamage(t *testing.T) {
	t.Parallel()
	good := line(`{"version":2,"network":"net","container":"c1","ifname":"eth0","state":"planned","created":"2024-01-02T03:04:05Z","updated":"2024-01-02T03:04:05Z","value":{"Text":"x"}}`)
	for _, tt := range []struct{ name, json, version string }{
		{"0", `{"version":0}`, "0"},
		{"1", `{"version":1}`, "1"},
		{"3", `{"version":3}`, "3"},
		{"3, with our keys of other types", `{"version":3,"network":7,"created":{},"value":[]}`, "3"},
	} {
		for _, before := range []string{"", good, "\n\ngarbage\n"} {
			_, err := decode[value]([]byte(before+line(tt.json)), k1)
			if !errors.Is(err, ErrVersion) || errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "version "+tt.version+", this program reads 2") {
				t.Errorf("%s after %q: %v", tt.name, before, err)
			}
		}
		if got := check([]byte(line(tt.json) + good)); got != "planned x" {
			t.Errorf("%s, then a good line: %s", tt.name, got)
		}
	}
}

// File names are legible where they can be.
func TestFileNames(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		key  Key
		want string
	}{
		{Key{"net", "c0ffee", "eth0"}, "c0ffee@net@eth0.json"},
		{Key{"a-b.c_d", "c", "eth0.100"}, "c@a-b.c_d@eth0.100.json"},
		{Key{"n", "c", "a@b%c"}, "c@n@a%40b%25c.json"},
		{Key{"n", "c", "é"}, "c@n@%C3%A9.json"},
		{Key{strings.Repeat("n", 95), strings.Repeat("c", 95), "e"}, strings.Repeat("c", 95) + "@" + strings.Repeat("n", 95) + "@e.json"},
		{Key{strings.Repeat("n", 191), "c", "e"}, "c@#276ee9fcad693f2d09036448de7319fd5a7201a3e59b10c356534f899dd716b0@e.json"},
	} {
		if got := fileName(tt.key); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
	longest := Key{strings.Repeat("n", 95), strings.Repeat("c", 95), strings.Repeat("\u00e9", 7) + "@"}
	if n := len(durable.TempPrefix + fileName(longest)); checkKey(longest) != nil || n > 255 {
		t.Errorf("a file name of %d bytes", n)
	}
	for _, name := range []string{"", "c", "c@lock", "c@net", "c@net.json", "net@eth0.json", "@net@eth0.json", "c@@eth0.json", "c@net@.json", "c@net@a@b.json", "../c@net@e.json", ".c@net@e.json", "c@net@%zz.json", "c@net@%4.json", "c@net@e.corrupt", "c@#12@e.json", "c@" + strings.Repeat("n", 96) + "@e.json"} {
		if k, ok := parseName(name); ok {
			t.Errorf("%q is read as %q", name, k)
		}
	}
	if s := fmt.Sprint(Key{"n", "c", "e"}); s != "n/c/e" {
		t.Error(s)
	}
}

// A tag is a name in every language, whatever the interface is called, and each key has another.
func TestTag(t *testing.T) {
	t.Parallel()
	tags := make(map[string]Key)
	for _, k := range []Key{
		{"n", "c", "e"},
		{"n", "c", "e#0"},
		{"n", "c", "a;b"},
		{"n", "c", "abcdefghijklmno"},
		{"n", "c", "\"$(x)"},
		{"m", "c", "e"},
		{"n", "d", "e"},
		{"n", "c.e", "e"},
		{"n.c", "e", "e"},
		{strings.Repeat("n", 300), strings.Repeat("c", 300), "e"},
	} {
		tag := k.Tag("policy-")
		if !regexp.MustCompile(`^policy-[a-z2-7]{16}$`).MatchString(tag) || tag != k.Tag("policy-") {
			t.Errorf("the tag of %v is %q", k, tag)
		}
		if other, ok := tags[tag]; ok {
			t.Errorf("%v and %v have the tag %s", k, other, tag)
		}
		tags[tag] = k
	}
	if tag := (Key{"net", "c0ffee", "eth0"}).Tag(""); tag != "qkh5kbm5syyt66na" {
		t.Errorf("the tag is %s: rules of running containers would not be found", tag)
	}
}

// Whatever is on disk, decode returns a record that a line of it says, of the
// right key, or ErrCorrupt.
func FuzzDecode(f *testing.F) {
	k := Key{Network: "net", ContainerID: "c1", IfName: "eth0"}
	one, err := encode(Record[any]{Key: k, State: Planned, Value: map[string]any{"a": 1.0}})
	nodetest.OK(f, err)
	two, err := encode(Record[any]{Key: k, State: Added, Created: time.Unix(1, 0), Value: []any{nil, "\n"}})
	nodetest.OK(f, err)
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
