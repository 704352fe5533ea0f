package scratch

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
		{"empty", ``, "not a record"},
		{"null", `null`, "no version"},
		{"list", `[]`, "cannot unmarshal array"},
		{"not JSON", `{`, "unexpected end"},
		{"two values", good + `{}`, "after top-level value"},
		{"no version", swap(`"version":2,`, ``), "no version"},
		{"version of another type", swap(`"version":2`, `"version":"1"`), "cannot unmarshal string"},
		{"another network", swap(`"net"`, `"ten"`), `"ten/c1/eth0"`},
		{"another container", swap(`"c1"`, `"c2"`), `"net/c2/eth0"`},
		{"another interface", swap(`"eth0"`, `"eth1"`), `"net/c1/eth1"`},
		{"a path", swap(`"c1"`, `"../c1"`), `"net/../c1/eth0"`},
		{"unknown state", swap(`"planned"`, `"done"`), `unknown state "done"`},
		{"no state", swap(`"state":"planned",`, ``), `unknown state ""`},
		{"state of another type", swap(`"planned"`, `7`), "cannot unmarshal number"},
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
		if err != nil {
			t.Fatal(err)
		}
		got, err := decode[value](data, k1)
		r.Updated = got.Updated
		if diff := cmp.Diff(r, got); diff != "" || err != nil || bytes.Count(data, []byte{'\n'}) != 1 {
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
		{"below", `{"version":-1}`, "-1"},
		{"3", `{"version":3}`, "3"},
		{"3, with our keys", `{"version":3,"network":"net","container":"c1","ifname":"eth0","state":"planned"}`, "3"},
		{"3, with our keys of other types", `{"version":3,"network":7,"created":{},"value":[]}`, "3"},
		{"3, at the end", `{"state":[],"created":1,"value":7,"version":3}`, "3"},
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
