package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/metacni/metacni/internal/nodetest"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/thick"
)

const secret = "hunter2hunter2"

// lines are those of a log, each a JSON object.
func (j *journal) lines(t *testing.T) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range strings.Lines(j.String()) {
		var keys map[string]any
		if err := json.Unmarshal([]byte(line), &keys); err != nil {
			t.Fatalf("not JSON: %q: %v", line, err)
		}
		all = append(all, keys)
	}
	return all
}

// of are the lines with a message.
func (j *journal) of(t *testing.T, msg string) (found []map[string]any) {
	t.Helper()
	for _, line := range j.lines(t) {
		if line["msg"] == msg {
			found = append(found, line)
		}
	}
	return found
}

// Each request has one line with everything that an operator looks for.
func TestEachRequestHasOneLogLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "").start(t)
	w.mustRun(t, "STATUS", bridge) // at level debug only
	w.mustRun(t, "ADD", bridge)
	if err := w.run(t, "ADD", bridge); err == nil {
		t.Fatal("added twice")
	}
	nodetest.OK(t, w.stop()) // the line comes after the answer
	lines := w.logged.of(t, "request")
	if len(lines) != 2 {
		t.Fatalf("log:\n%s", w.logged)
	}
	slices.SortFunc(lines, func(a, b map[string]any) int { return strings.Compare(a["level"].(string), b["level"].(string)) })
	for key, want := range map[string]any{
		"level": "INFO", "command": "ADD", "container": "c1", "ifname": "eth0", "network": "multi",
		"pod_namespace": "ns", "pod": "pod-1", "status": 200.0,
	} {
		if lines[0][key] != want {
			t.Errorf("%s is %v, want %v", key, lines[0][key], want)
		}
	}
	if lines[0]["duration"] == nil || lines[0]["error"] != nil {
		t.Errorf("line %v", lines[0])
	}
	if failed := lines[1]; failed["level"] != "WARN" || failed["code"] != 7.0 || !strings.Contains(failed["error"].(string), "already added") {
		t.Errorf("line %v", failed)
	}
}

// At every level, and whatever fails, the log has no value of a configuration that
// may be a secret.
func TestLogHasNoSecrets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `,"logLevel":"debug"`)
	bin := t.TempDir()
	script(t, bin, "talks", `conf=$(cat); echo "called with $conf" >&2; echo "$conf" | tr , '\n' >&2; echo '{"cniVersion":"1.1.0"}'`)
	script(t, bin, "fails", `cat >&2; [ $CNI_COMMAND = ADD ] && exit 3; exit 0`)
	w.exec = &executor{log: w.log}
	w.path = os.Getenv("PATH")
	nodetest.OK(t, os.WriteFile(w.args("").Netns, nil, 0o600))
	w.start(t)
	dir := `"binDir":"` + bin + `",`
	for _, keys := range []string{
		dir + `"delegates":[{"type":"talks","password":"` + secret + `"}]`,
		dir + `"delegates":[{"type":"fails","password":"` + secret + `","nested":[{"x":"` + secret + `y"}]}]`,
		`"delegates":[{"type":"absent","password":"` + secret + `"}]`,
		`"delegates":[{"type":"bridge","ipam":["` + secret + `"]}]`,
		`"token":"` + secret + `","delegates":["` + secret + `"]`,
		`"delegates":[{"type":"bridge","password":"` + secret + `","password":"x"}]`,
	} {
		for _, command := range []string{"ADD", "CHECK", "STATUS", "GC", "DEL"} {
			_ = w.run(t, command, keys)
		}
	}
	hot := w.args(`{"name":"x","type":"` + secret + `,"`)
	_, _ = w.client.Attach(t.Context(), "ADD", hot, nil)
	nodetest.OK(t, w.stop())
	if text := w.logged.String(); strings.Contains(text, secret) {
		t.Errorf("the log has a secret:\n%s", text)
	}
	said := w.logged.of(t, "plugin's stderr")
	if len(said) == 0 || said[0]["plugin"] != "talks" || said[0]["command"] != "ADD" || said[0]["container"] != "c1" || said[0]["ifname"] != "eth0" {
		t.Errorf("log:\n%s", w.logged)
	}
}

// script writes a plugin that is a shell script.
func script(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	nodetest.OK(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	return path
}

// The number and the length of logged lines are limited, so that a plugin cannot
// fill the disk.
func TestStderrIsCapped(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		writes []string
		want   []string
	}{
		{"nothing", nil, nil},
		{"lines", []string{"a\nb\n"}, []string{"a", "b"}},
		{"a line in pieces", []string{"a", "b", "\n", "c"}, []string{"ab", "c"}},
		{"empty lines", []string{"\n\n  \n\r\n"}, nil},
		{"a long line", []string{strings.Repeat("x", 3*maxLine) + "\ny\n"}, []string{strings.Repeat("x", maxLine) + "...", "y"}},
		{"many lines", []string{strings.Repeat("x\n", 10*maxLines)}, append(strings.Fields(strings.Repeat("x ", maxLines)), "")},
		{"a secret", []string{"password " + secret + "\n"}, []string{"password (hidden)"}},
		{"what is no secret", []string{"network blue-net\n"}, []string{"network blue-net"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var j journal
			w := &lineWriter{ctx: t.Context(), log: slog.New(slog.NewJSONHandler(&j, nil)), stdin: []byte(`{"name":"blue-net","x":["` + secret + `"]}`)}
			for _, text := range tt.writes {
				if n, err := w.Write([]byte(text)); n != len(text) || err != nil {
					t.Errorf("wrote %d: %v", n, err)
				}
			}
			w.end()
			if n, err := w.Write([]byte("late\n")); n != 5 || err != nil {
				t.Errorf("late: %d, %v", n, err)
			}
			w.end()
			var got []string
			for _, line := range j.lines(t) {
				text, _ := line["text"].(string)
				got = append(got, text)
			}
			if strings.Join(got, "|") != strings.Join(tt.want, "|") {
				t.Errorf("logged %q, want %q", got, tt.want)
			}
		})
	}
}

// Wherever a line is cut, it keeps no part of a secret.
func TestCutLineHasNoPartOfASecret(t *testing.T) {
	t.Parallel()
	for n := range 3 * len(secret) {
		for _, text := range []string{
			strings.Repeat("x", maxLine-n) + secret + secret,
			strings.Repeat("x", maxLine-n) + strings.Repeat(secret+" ", 3),
			strings.Repeat("x", n) + strings.Repeat(secret, maxLine),
		} {
			var j journal
			w := &lineWriter{ctx: t.Context(), log: slog.New(slog.NewJSONHandler(&j, nil)), stdin: []byte(`{"x":["` + secret + `"]}`)}
			_, _ = w.Write([]byte(text))
			w.end()
			if got := j.String(); strings.Contains(got, "hunt") || got == "" {
				t.Fatalf("logged %s", got)
			}
		}
	}
}

// Requests that are refused or have no attachment have a line too.
func TestRefusedRequestsAreLogged(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	log := slog.New(slog.NewTextHandler(&b, nil))
	logEvent(context.WithoutCancel(t.Context()), log, thick.Event{UID: 1000, Status: 403, Err: errors.New("user 1000 may not connect"), Duration: time.Second})
	logEvent(context.WithoutCancel(t.Context()), log, thick.Event{Command: "STATUS", Status: 503, Err: types.NewError(50, "draining", "")})
	if got := b.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "uid=1000") || !strings.Contains(got, "code=50") {
		t.Errorf("log:\n%s", got)
	}
}
