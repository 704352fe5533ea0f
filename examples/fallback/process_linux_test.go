package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/examples/internal/programtest"
)

// The tests here run fallback as a process, as a runtime does. Tests with real
// namespaces are in internal/e2e.

func TestMain(m *testing.M) {
	programtest.Main(m, "fallback", main)
}

// processConf is a configuration of fake plugins, with what each does in ADD.
func processConf(t *testing.T, h *programtest.Host, onADD ...string) string {
	t.Helper()
	var choices []any
	for _, on := range onADD {
		choices = append(choices, map[string]any{"type": "fake", "dir": h.Dir, "password": "hunter2hunter2", "on": map[string]string{"ADD": on}})
	}
	conf, err := json.Marshal(map[string]any{"cniVersion": "1.1.0", "name": "pods", "type": "fallback", "cniDir": h.State, "choices": choices})
	if err != nil {
		t.Fatal(err)
	}
	return string(conf)
}

func TestProcess(t *testing.T) {
	t.Parallel()
	h := programtest.NewHost(t, "fallback")
	conf := processConf(t, h, "fail", "")
	for _, tt := range []struct{ command, stdin, want string }{
		{"ADD", conf, `{"cniVersion":"1.1.0"}`},
		{"CHECK", conf, ""},
		{"STATUS", conf, ""},
		{"GC", strings.Replace(conf, "{", `{"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}],`, 1), ""},
		{"DEL", conf, ""},
		{"VERSION", "", `{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}`},
	} {
		stdout, stderr, code := h.Run(tt.command, tt.stdin)
		if got := strings.TrimSpace(string(stdout)); got != tt.want || stderr != "" || code != 0 {
			t.Errorf("%s: status %d, %s, %q; want %s", tt.command, code, got, stderr, tt.want)
		}
	}
	want := []string{"ADD eth0", "DEL eth0", "ADD eth0", "CHECK eth0", "STATUS", "GC", "GC", "DEL eth0"}
	if diff := cmp.Diff(want, h.Log()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	stdout, stderr, code := h.Run("", "")
	if len(stdout) > 0 || code != 0 || !strings.Contains(stderr, "meta-plugin fallback") {
		t.Errorf("without a command: status %d, %s, %s", code, stdout, stderr)
	}
	if files := programtest.Files(t, h.State); len(files) > 0 {
		t.Errorf("left: %q", files)
	}
}

// The error is one JSON object with the reason of each choice and nothing from the
// configuration.
func TestEveryReasonIsInOneError(t *testing.T) {
	t.Parallel()
	h := programtest.NewHost(t, "fallback")
	stdout, stderr, code := h.Run("ADD", processConf(t, h, "fail", "fail"))
	version, said := h.Said(stdout)
	if code != 1 || stderr != "" || version != "1.1.0" || said.Code != 107 {
		t.Errorf("status %d, version %s, %+v, stderr %q", code, version, said, stderr)
	}
	if n := strings.Count(said.Msg, "no free device"); n != 2 || bytes.Contains(stdout, []byte("hunter2")) {
		t.Errorf("%s", stdout)
	}
}

// After SIGTERM no other choice is tried, and nothing is left.
func TestNoChoiceIsTriedAfterSIGTERM(t *testing.T) {
	t.Parallel()
	for _, first := range [][]string{nil, {"fail"}} {
		t.Run(fmt.Sprint(first), func(t *testing.T) {
			t.Parallel()
			h := programtest.NewHost(t, "fallback")
			cmd := h.Command("ADD", processConf(t, h, append(first, "hang", "")...))
			var stdout bytes.Buffer
			cmd.Stdout = &stdout
			h.Ready(cmd.Start)
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("ended with %v, want status 1", err)
			}
			if _, said := h.Said(stdout.Bytes()); said.Code != 11 {
				t.Errorf("%+v, want code 11", said)
			}
			var want []string
			for range len(first) + 1 {
				want = append(want, "ADD eth0", "DEL eth0")
			}
			if diff := cmp.Diff(want, h.Log()); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			if files := programtest.Files(t, h.State); len(files) > 0 {
				t.Errorf("left: %q", files)
			}
		})
	}
}
