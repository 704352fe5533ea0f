package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/examples/internal/programtest"
)

// The tests here run multinet as a process, as a runtime does. Tests with real
// namespaces are in internal/e2e.

func TestMain(m *testing.M) {
	programtest.Main(m, "multinet", main)
}

// processConf returns a configuration with a fake delegate. The string fake holds more
// keys of the delegate, as JSON without the braces.
func processConf(h *programtest.Host, version, fake string) string {
	return fmt.Sprintf(`{"cniVersion":%q,"name":"multi","type":"multinet","cniDir":%q,"delegates":[{"type":"fake","dir":%q,"secret":"hunter2hunter2"%s}]}`,
		version, h.State, h.Dir, fake)
}

func TestProcess(t *testing.T) {
	t.Parallel()
	h := programtest.NewHost(t, "multinet")
	conf := processConf(h, "1.1.0", "")
	for _, tt := range []struct{ command, stdin, want string }{
		{"ADD", conf, `{"cniVersion":"1.1.0"}`},
		{"CHECK", conf, ""},
		{"STATUS", conf, ""},
		{"GC", strings.TrimSuffix(conf, "}") + `,"cni.dev/valid-attachments":[]}`, ""},
		{"DEL", conf, ""},
		{"VERSION", "", `{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}`},
	} {
		stdout, stderr, code := h.Run(tt.command, tt.stdin)
		if got := strings.TrimSpace(string(stdout)); got != tt.want || stderr != "" || code != 0 {
			t.Errorf("%s: status %d, %s, %q; want %s", tt.command, code, got, stderr, tt.want)
		}
	}
	if diff := cmp.Diff([]string{"ADD eth0", "CHECK eth0", "STATUS", "DEL eth0", "GC"}, h.Log()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if files := programtest.Files(t, h.State); len(files) > 0 {
		t.Errorf("left: %q", files)
	}
}

// Without CNI_COMMAND and arguments, multinet prints what it is to stderr.
func TestNoCommand(t *testing.T) {
	t.Parallel()
	h := programtest.NewHost(t, "multinet")
	stdout, stderr, code := h.Run("", "")
	if len(stdout) > 0 || code != 0 || !strings.Contains(stderr, "meta-plugin multinet") || !strings.Contains(stderr, "1.1.0") {
		t.Errorf("status %d, %s, %s", code, stdout, stderr)
	}
}

// Every error is one JSON object on stdout, with a version and a code, and without
// anything from the configuration.
func TestErrorIsOneObject(t *testing.T) {
	t.Parallel()
	h := programtest.NewHost(t, "multinet")
	conf := processConf(h, "1.0.0", "")
	for _, tt := range []struct {
		name, command, stdin string
		env                  []string
		version              string
		code                 uint
	}{
		{"unknown command", "JUMP", conf, nil, "1.0.0", 4},
		{"no container ID", "ADD", conf, []string{"CNI_CONTAINERID="}, "1.1.0", 4},
		{"container ID that leads out", "DEL", conf, []string{"CNI_CONTAINERID=../x"}, "1.1.0", 4},
		{"interface name of 16 bytes", "ADD", conf, []string{"CNI_IFNAME=abcdefghijklmnop"}, "1.1.0", 4},
		{"template for an interface name", "ADD", conf, []string{"CNI_IFNAME=net%d"}, "1.0.0", 4},
		{"not JSON", "ADD", "{", nil, "1.1.0", 6},
		{"no name", "ADD", `{"cniVersion":"1.0.0"}`, nil, "1.0.0", 7},
		{"unknown version", "ADD", strings.Replace(conf, "1.0.0", "9.0.0", 1), nil, "1.1.0", 1},
		{"no delegates", "ADD", `{"cniVersion":"0.4.0","name":"multi","type":"multinet","cniDir":"` + h.State + `"}`, nil, "0.4.0", 7},
		{"the host's own namespace", "ADD", conf, []string{"CNI_NETNS=/proc/self/ns/net"}, "1.0.0", 8},
		{"delegate fails", "ADD", processConf(h, "0.3.1", `,"on":{"ADD":"fail"}`), nil, "0.3.1", 107},
		{"CHECK of nothing", "CHECK", conf, nil, "1.0.0", 7},
		{"GC without a list", "GC", processConf(h, "1.1.0", ""), nil, "1.1.0", 7},
		{"not ready", "STATUS", processConf(h, "1.1.0", `,"on":{"STATUS":"fail"}`), nil, "1.1.0", 50},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stdout, stderr, code := h.Run(tt.command, tt.stdin, tt.env...)
			version, said := h.Said(stdout)
			if code != 1 || version != tt.version || said.Code != tt.code || said.Msg == "" {
				t.Errorf("status %d, version %s, %+v; want status 1, version %s, code %d", code, version, said, tt.version, tt.code)
			}
			if stderr != "" || bytes.Contains(stdout, []byte("hunter2")) {
				t.Errorf("stdout %s, stderr %s", stdout, stderr)
			}
		})
	}
	if diff := cmp.Diff([]string{"ADD eth0", "DEL eth0", "STATUS"}, h.Log()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if files := programtest.Files(t, h.State); len(files) > 0 {
		t.Errorf("left: %q", files)
	}
}

// An ADD whose result nobody reads is undone: SIGPIPE does not kill the process.
func TestClosedStdoutUndoesADD(t *testing.T) {
	t.Parallel()
	h := programtest.NewHost(t, "multinet")
	cmd := h.Command("ADD", processConf(h, "1.0.0", ""))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = w
	if err := errors.Join(r.Close(), cmd.Start(), w.Close()); err != nil {
		t.Fatal(err)
	}
	wantUndone(t, h, cmd)
}

// wantUndone waits for an ADD. It must fail, and have removed what it had attached.
func wantUndone(t *testing.T, h *programtest.Host, cmd *exec.Cmd) {
	t.Helper()
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("ended with %v, want status 1", err)
	}
	if got := h.Log(); !slices.Equal(got, []string{"ADD eth0", "DEL eth0"}) {
		t.Errorf("calls %q", got)
	}
	if files := programtest.Files(t, h.State); len(files) > 0 {
		t.Errorf("left: %q", files)
	}
}

// SIGTERM undoes an ADD that waits for somebody to read its result.
func TestSignalUndoesADDThatBlocksInWriting(t *testing.T) {
	t.Parallel()
	h := programtest.NewHost(t, "multinet")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := h.Command("ADD", processConf(h, "1.0.0", `,"on":{"ADD":"large"}`))
	cmd.Stdout = w
	if err := errors.Join(cmd.Start(), w.Close()); err != nil {
		t.Fatal(err)
	}
	// The pipe holds less than the result: after the first byte the plugin blocks.
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	wantUndone(t, h, cmd)
	if printed, err := io.ReadAll(r); err != nil || len(printed) == 0 || bytes.Contains(printed, []byte("msg")) {
		t.Errorf("after the beginning of the result: %.80q, %v", printed, err)
	}
	_ = r.Close()
}

// An ADD that is stopped by a signal fails with code 11 and is undone.
func TestSignalUndoesADD(t *testing.T) {
	t.Parallel()
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Interrupt, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			h := programtest.NewHost(t, "multinet")
			cmd := h.Command("ADD", processConf(h, "1.0.0", `,"on":{"ADD":"hang"}`))
			var stdout bytes.Buffer
			cmd.Stdout = &stdout
			h.Ready(cmd.Start)
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("ended with %v, want status 1", err)
			}
			if version, said := h.Said(stdout.Bytes()); version != "1.0.0" || said.Code != 11 {
				t.Errorf("version %s, %+v", version, said)
			}
			if got := h.Log(); !slices.Equal(got, []string{"ADD eth0", "DEL eth0"}) {
				t.Errorf("calls %q", got)
			}
			if files := programtest.Files(t, h.State); len(files) > 0 {
				t.Errorf("left: %q", files)
			}
		})
	}
}

// The operator's tool is the same executable.
func TestToolProcess(t *testing.T) {
	t.Parallel()
	h := programtest.NewHost(t, "multinet")
	if _, stderr, code := h.Run("ADD", processConf(h, "1.0.0", "")); code != 0 {
		t.Fatal(stderr)
	}
	tool := func(args ...string) (string, string, int) {
		cmd := h.Command("", "")
		cmd.Args = append(cmd.Args, args...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run() // its status is what counts
		return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
	}
	if out, errs, code := tool("status", "--dir", h.State, "c1"); !json.Valid([]byte(out)) || errs != "" || code != 0 {
		t.Errorf("status %d, %s, %s", code, out, errs)
	}
	if out, errs, code := tool("--help"); !strings.HasPrefix(out, "usage: multinet") || errs != "" || code != 0 {
		t.Errorf("status %d, %s, %s", code, out, errs)
	}
	if out, errs, code := tool("--version"); !regexp.MustCompile(`^multinet \S+\n$`).MatchString(out) || errs != "" || code != 0 {
		t.Errorf("status %d, %s, %s", code, out, errs)
	}
	if out, errs, code := tool("list", "--dir", h.State+"x"); out != "" || !strings.Contains(errs, "no directory") || code != 1 {
		t.Errorf("status %d, %s, %s", code, out, errs)
	}
	if out, errs, code := tool("burn"); out != "" || !strings.Contains(errs, "usage: multinet") || code != 1 {
		t.Errorf("status %d, %s, %s", code, out, errs)
	}
}
