//go:build unix

package programtest

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
)

// A Conf returns a configuration with the fake as the only delegate. The string fake holds
// more keys of the delegate, as JSON without the braces.
type Conf func(h *Host, version, fake string) string

// Test runs the plugin with that name, as a runtime does, through the life of a container
// and through what can go wrong with a process.
func Test(t *testing.T, name string, conf Conf) {
	t.Helper()
	secret := func(h *Host, version, fake string) string { return conf(h, version, `,"secret":"hunter2hunter2"`+fake) }
	t.Run("life", func(t *testing.T) { t.Parallel(); life(t, name, secret) })
	t.Run("errors", func(t *testing.T) { t.Parallel(); oneObject(t, name, secret) })
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Interrupt, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) { t.Parallel(); signalled(t, name, sig, secret) })
	}
	t.Run("blocked in writing", func(t *testing.T) { t.Parallel(); blocked(t, name, secret) })
}

// life runs every command, and the plugin by hand.
func life(t *testing.T, name string, conf Conf) {
	t.Helper()
	h := NewHost(t, name)
	stdin := conf(h, "1.1.0", "")
	for _, tt := range []struct{ command, stdin, want string }{
		{"ADD", stdin, `{"cniVersion":"1.1.0"}`},
		{"CHECK", stdin, ""},
		{"STATUS", stdin, ""},
		{"GC", strings.Replace(stdin, "{", `{"cni.dev/valid-attachments":[],`, 1), ""},
		{"DEL", stdin, ""},
		{"VERSION", "", `{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}`},
	} {
		stdout, stderr, code := h.Run(tt.command, tt.stdin)
		if got := strings.TrimSpace(string(stdout)); got != tt.want || stderr != "" || code != 0 {
			t.Errorf("%s: status %d, %s, %q; want %s", tt.command, code, got, stderr, tt.want)
		}
	}
	stdout, stderr, code := h.Run("", "")
	if len(stdout) > 0 || code != 0 || !strings.Contains(stderr, "meta-plugin "+name) || !strings.Contains(stderr, "1.1.0") {
		t.Errorf("without a command: status %d, %s, %s", code, stdout, stderr)
	}
	h.wantNothingLeft("ADD eth0", "CHECK eth0", "STATUS", "DEL eth0", "GC")
}

// oneObject wants each error as one JSON object on stdout, with a version and a code, and
// without anything from the configuration.
func oneObject(t *testing.T, name string, conf Conf) {
	t.Helper()
	h := NewHost(t, name)
	stdin, newest := conf(h, "1.0.0", ""), conf(h, "1.1.0", `,"on":{"STATUS":"fail"}`)
	for _, tt := range []struct {
		name, command, stdin string
		env                  []string
		version              string
		code                 uint
	}{
		{"unknown command", "JUMP", stdin, nil, "1.0.0", 4},
		{"no container ID", "ADD", stdin, []string{"CNI_CONTAINERID="}, "1.1.0", 4},
		{"container ID that leads out", "DEL", stdin, []string{"CNI_CONTAINERID=../x"}, "1.1.0", 4},
		{"interface name of 16 bytes", "ADD", stdin, []string{"CNI_IFNAME=abcdefghijklmnop"}, "1.1.0", 4},
		{"template for an interface name", "ADD", stdin, []string{"CNI_IFNAME=net%d"}, "1.0.0", 4},
		{"not JSON", "ADD", "{", nil, "1.1.0", 6},
		{"no name", "ADD", `{"cniVersion":"1.0.0"}`, nil, "1.0.0", 7},
		{"unknown version", "ADD", conf(h, "9.0.0", ""), nil, "1.1.0", 1},
		{"the host's own namespace", "ADD", stdin, []string{"CNI_NETNS=/proc/self/ns/net"}, "1.0.0", 8},
		{"delegate fails", "ADD", conf(h, "0.3.1", `,"on":{"ADD":"fail"}`), nil, "0.3.1", 107},
		{"CHECK of nothing", "CHECK", stdin, nil, "1.0.0", 7},
		{"GC without a list", "GC", newest, nil, "1.1.0", 7},
		{"not ready", "STATUS", newest, nil, "1.1.0", 50},
	} {
		stdout, stderr, code := h.Run(tt.command, tt.stdin, tt.env...)
		version, said := h.Said(stdout)
		if code != 1 || version != tt.version || said.Code != tt.code || said.Msg == "" {
			t.Errorf("%s: status %d, version %s, %+v; want status 1, version %s, code %d", tt.name, code, version, said, tt.version, tt.code)
		}
		if stderr != "" || bytes.Contains(stdout, []byte("hunter2")) {
			t.Errorf("%s: stdout %s, stderr %s", tt.name, stdout, stderr)
		}
	}
	h.wantNothingLeft("ADD eth0", "DEL eth0", "STATUS")
}

// signalled wants an ADD that a signal stops to fail with code 11, and to be undone.
func signalled(t *testing.T, name string, sig os.Signal, conf Conf) {
	t.Helper()
	h := NewHost(t, name)
	cmd := h.Command("ADD", conf(h, "1.0.0", `,"on":{"ADD":"hang"}`))
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	h.Ready(cmd.Start)
	nodetest.OK(t, cmd.Process.Signal(sig))
	h.wantUndone(cmd)
	if version, said := h.Said(stdout.Bytes()); version != "1.0.0" || said.Code != 11 {
		t.Errorf("version %s, %+v", version, said)
	}
}

// blocked wants SIGTERM to undo an ADD that waits for somebody to read its result.
func blocked(t *testing.T, name string, conf Conf) {
	t.Helper()
	h := NewHost(t, name)
	r, w, err := os.Pipe()
	nodetest.OK(t, err)
	cmd := h.Command("ADD", conf(h, "1.0.0", `,"on":{"ADD":"large"}`))
	cmd.Stdout = w
	nodetest.OK(t, errors.Join(cmd.Start(), w.Close()))
	// The pipe holds less than the result: after the first byte the plugin blocks.
	_, err = r.Read(make([]byte, 1))
	nodetest.OK(t, errors.Join(err, cmd.Process.Signal(syscall.SIGTERM)))
	h.wantUndone(cmd)
	if printed, err := io.ReadAll(r); err != nil || len(printed) == 0 || bytes.Contains(printed, []byte("msg")) {
		t.Errorf("after the beginning of the result: %.80q, %v", printed, err)
	}
	_ = r.Close()
}

// wantUndone waits for an ADD. It must fail, and have removed what it had attached.
func (h *Host) wantUndone(cmd *exec.Cmd) {
	h.t.Helper()
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		h.t.Errorf("ended with %v, want status 1", err)
	}
	h.wantNothingLeft("ADD eth0", "DEL eth0")
}

// wantNothingLeft wants these calls of the fake, and no record.
func (h *Host) wantNothingLeft(calls ...string) {
	h.t.Helper()
	nodetest.Equal(h.t, "calls", h.Log(), calls)
	nodetest.Equal(h.t, "left", Files(h.t, h.State), nil)
}
