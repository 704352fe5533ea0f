package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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
	for _, version := range []int{0, 3, 1000} {
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

// recordV1 is the text of a line of a version 1 record.
const recordV1 = `{"version":1,"network":"NETWORK","container":"ID","ifname":"eth0","state":"STATE",` +
	`"created":"2026-11-22T00:39:04.204483336Z","updated":"2026-11-22T00:39:04.204487899Z","value":{"delegates":[` +
	`{"network":{"cniVersion":"1.1.0","name":"NETWORK","plugins":[{"code":111,"dir":"DIR","id":"a","on":{},"type":"fake"}]},` +
	`"netns":{"path":"NETNS","dev":DEV,"inode":INODE},"ifname":"eth0","args":"IgnoreUnknown=1;K8S_POD_NAME=ID"RESULT},` +
	`{"network":{"cniVersion":"1.1.0","name":"NETWORK","plugins":[{"code":111,"dir":"DIR","id":"b","on":{},"type":"fake"}]},` +
	`"netns":{"path":"NETNS","dev":DEV,"inode":INODE},"ifname":"net1","args":"IgnoreUnknown=1;K8S_POD_NAME=ID"RESULT}]}}`

// TestRecordOfVersion1IsTakenOver: every command reads and moves records of
// version 1, in each of their states.
func TestRecordOfVersion1IsTakenOver(t *testing.T) {
	for _, states := range [][]string{{"planned"}, {"planned", "added"}, {"planned", "added", "deleting"}, {"planned", "deleting"}} {
		last := states[len(states)-1]
		for _, command := range []string{"DEL", "DEL without a namespace", "GC", "ADD", "forget"} {
			t.Run(strings.Join(states, ",")+"/"+command, func(t *testing.T) {
				w := newWorld(t)
				p := w.pod(w.multinet("1.1.0", w.fake("a"), w.fake("b")))
				w.ok("ADD", p) // for the fakes' markers
				if err := os.RemoveAll(w.file("state")); err != nil {
					t.Fatal(err)
				}
				w.version1(p, states)
				w.forget()
				if r := w.operate("list"); r.code != 0 || !strings.Contains(r.stdout, p.id) || !strings.Contains(r.stdout, last) {
					t.Errorf("list: %+v", r)
				}
				if r := w.operate("show", p.id); r.code != 0 || !strings.Contains(r.stdout, last) {
					t.Errorf("show: %+v", r)
				}
				if last == "added" {
					w.ok("CHECK", p)
					w.fails(7, "ADD", p, nil)
					w.ok("GC", p, valid(p))
					w.forget()
				}
				deleted := true
				switch command {
				case "ADD":
					if last != "added" {
						w.ok("ADD", p)
						same(t, "attached", 2, len(w.live()))
					}
					w.ok("DEL", p)
				case "forget":
					if r := w.operate("forget", p.id, "--yes"); r.code != 0 {
						t.Errorf("forget: %+v", r)
					}
					deleted = false
				default:
					w.detach(command, p)
				}
				calls := w.calls()
				if deleted && (len(calls) < 2 || calls[0].Command != "DEL" || calls[0].ID != "b" || calls[1].ID != "a") {
					t.Errorf("the plugins were not called for DEL: %v", calls)
				}
				if deleted && last != "planned" && len(states) > 1 && states[1] == "added" && w.key(calls[0].Stdin, "prevResult") == "" {
					t.Error("DEL without the recorded result")
				}
				same(t, "attached", map[bool]int{true: 0, false: 2}[deleted], len(w.live()))
				same(t, "state", nil, w.state())
				w.figures("a record of version 1, "+last+", then "+command, 1)
			})
		}
	}
}

// TestKillWhileTakingOverLosesNothing kills a DEL of a version 1 record at
// every step, including those that move the record. The next DEL removes
// everything.
func TestKillWhileTakingOverLosesNothing(t *testing.T) {
	w := newWorld(t)
	p := w.pod(w.multinet("1.1.0", w.fake("a"), w.fake("b")))
	before := func() {
		w.ok("ADD", p) // for the fakes' markers
		if err := os.RemoveAll(w.file("state")); err != nil {
			t.Fatal(err)
		}
		w.version1(p, []string{"planned", "added"})
	}
	before()
	w.ok("DEL", p, w.stepping(p, nil, false))
	steps := w.steps(p)
	has(t, steps, "DEL create C@lock", "DEL fchmod C@lock", "DEL renameat2 multi", "DEL fsync .", "DEL rmdir C")
	for _, at := range steps {
		before()
		w.crash("DEL", p, at, false)
		same(t, "recorded", len(w.leaked(p)) > 0, len(w.leaked(p)) > 0 && w.recorded(p, "state"))
		w.ok("DEL", p)
		w.clean(p, "state")
		if t.Failed() {
			t.Fatalf("killed at %v", at)
		}
	}
	w.figures("SIGKILL of a DEL of a record of version 1 at every step, then DEL", len(steps))
	w.nothingLeft()
}

// version1 writes a version 1 record of p that has gone through states in this
// order.
func (w *world) version1(p *pod, states []string) {
	w.t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(p.netns, &st); err != nil {
		w.t.Fatal(err)
	}
	var data []byte
	var printed bytes.Buffer
	if err := json.Compact(&printed, p.result); err != nil {
		w.t.Fatal(err)
	}
	result := ""
	for i, state := range states {
		if state == "added" {
			result = `,"result":` + printed.String()
		}
		line := strings.NewReplacer(
			"NETWORK", w.name("multi"), "STATE", state, "DIR", w.file("fake"), "NETNS", p.netns,
			"DEV", fmt.Sprint(st.Dev), "INODE", fmt.Sprint(st.Ino), "RESULT", result, `"ID"`, `"`+p.id+`"`, "=ID", "="+p.id,
		).Replace(recordV1)
		if i > 0 {
			data = append(data, '\n')
		}
		data = append(append(data, summed([]byte(line))...), '\n')
	}
	path := w.file("state", p.id, w.name("multi")+"@eth0.json")
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}
