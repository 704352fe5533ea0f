package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// summed returns a line of a record: a checksum and the text.
func summed(text []byte) []byte {
	sum := sha256.Sum256(text)
	return append([]byte(hex.EncodeToString(sum[:8])+" "), text...)
}

// ofVersion returns the record data as another version of the program might
// have written it.
func ofVersion(data []byte, version int) []byte {
	var lines [][]byte
	for line := range bytes.Lines(data) {
		if _, text, ok := bytes.Cut(bytes.TrimSpace(line), []byte(" ")); ok {
			text = regexp.MustCompile(`^\{"version":\d+`).ReplaceAll(text, fmt.Appendf(nil, `{"version":%d`, version))
			lines = append(lines, summed(text))
		}
	}
	return append(bytes.Join(lines, []byte("\n\n")), '\n')
}

// TestRecordOfAnUnknownVersionStays: no command changes a record of an unknown
// version, so that the program that wrote it can still read it. Commands that
// need the record fail with code 5 and run nothing.
func TestRecordOfAnUnknownVersionStays(t *testing.T) {
	for _, version := range []int{0, 1, 3, 1000} {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			w := newWorld(t)
			conf := w.multinet("1.1.0", w.fake("a"), w.fake("b"))
			p, other := w.pod(conf), w.pod(conf)
			w.ok("ADD", p)
			w.ok("ADD", other)
			w.forget()
			path := w.recordFile(p, "state")
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			foreign := ofVersion(data, version)
			if err := os.WriteFile(path, foreign, 0o600); err != nil {
				t.Fatal(err)
			}
			before := w.state()
			stays := func(after string) {
				t.Helper()
				same(t, "state after "+after, before, w.state())
				if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, foreign) {
					t.Fatalf("after %s: %v, %s", after, err, now)
				}
			}
			for range 2 {
				for _, words := range [][]string{
					{"list"},
					{"damaged"},
					{"show", p.id},
					{"status", p.id},
					{"gc", "--dry-run"},
					{"forget", p.id, "--yes"},
					{"forget", p.id, w.name("multi"), "eth0", "--yes"},
				} {
					r := w.operate(words...)
					stays(strings.Join(words, " "))
					if r.code == 0 && words[0] == "forget" {
						t.Errorf("%v: %+v", words, r)
					}
				}
				for _, command := range []string{"CHECK", "DEL", "ADD"} {
					w.fails(5, command, p, []string{"version"})
					stays(command)
				}
				w.fails(5, "GC", p, nil, valid(other))
				stays("GC")
			}
			for _, c := range w.calls() {
				if c.Container == p.id {
					t.Errorf("%s of %s", c.Command, c.ID)
				}
			}
			w.ok("CHECK", other)
			w.ok("DEL", other)

			// The program that wrote the record is back.
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			w.ok("CHECK", p)
			w.ok("DEL", p)
			w.nothingLeft()
			w.figures(fmt.Sprintf("a record of version %d", version), 22)
		})
	}
}
