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

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/internal/daemon"
	"github.com/metacni/metacni/internal/nodetest"
)

const secret = "hunter2hunter2"

// linesOf are the lines of a log with a message, each a JSON object.
func linesOf(t *testing.T, log *nodetest.Log, msg string) (found []map[string]any) {
	t.Helper()
	for line := range strings.Lines(log.String()) {
		var keys map[string]any
		if err := json.Unmarshal([]byte(line), &keys); err != nil {
			t.Fatalf("not JSON: %q: %v", line, err)
		}
		if keys["msg"] == msg {
			found = append(found, keys)
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
	lines := linesOf(t, w.logged, "request")
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
	w.exec = &daemon.Exec{Log: w.log}
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
	_, _ = w.client.Do(t.Context(), "ADD", hot, &wire.Attributes{})
	nodetest.OK(t, w.stop())
	if text := w.logged.String(); strings.Contains(text, secret) {
		t.Errorf("the log has a secret:\n%s", text)
	}
	said := linesOf(t, w.logged, "plugin's stderr")
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
