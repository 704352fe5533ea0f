//go:build linux

package programtest

import (
	"bytes"
	"os"
	"strings"
	"syscall"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// A Conf returns a configuration with the fake as the only delegate. The string fake holds
// more keys of the delegate, as JSON without the braces.
type Conf func(h *Host, version, fake string) string

// Test runs the plugin, as a runtime does, through the life of a container, and until a
// signal comes. How a command fails, and a full pipe, are tested in package plugin and by
// the conformance checks.
func Test(t *testing.T, conf Conf) {
	t.Helper()
	secret := func(h *Host, version, fake string) string { return conf(h, version, `,"secret":"hunter2hunter2"`+fake) }
	t.Run("life", func(t *testing.T) { t.Parallel(); life(t, secret) })
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Interrupt, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) { t.Parallel(); signalled(t, sig, secret) })
	}
}

// life runs every command, one that fails, and the plugin by hand.
func life(t *testing.T, conf Conf) {
	t.Helper()
	h := NewHost(t)
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
	if len(stdout) > 0 || code != 0 || !strings.Contains(stderr, "meta-plugin "+program) || !strings.Contains(stderr, "1.1.0") {
		t.Errorf("without a command: status %d, %s, %s", code, stdout, stderr)
	}
	stdout, stderr, code = h.Run("ADD", conf(h, "0.3.1", `,"on":{"ADD":"fail"}`))
	if said := h.Said(stdout); code != 1 || said.CNIVersion != "0.3.1" || said.Code != 107 || stderr != "" || bytes.Contains(stdout, []byte("hunter2")) {
		t.Errorf("delegate fails: status %d, %s, %s", code, stdout, stderr)
	}
	h.wantNothingLeft("ADD eth0", "CHECK eth0", "STATUS", "DEL eth0", "GC", "ADD eth0", "DEL eth0")
}

// signalled wants an ADD that a signal stops to fail with code 11, and to be undone.
func signalled(t *testing.T, sig os.Signal, conf Conf) {
	t.Helper()
	h := NewHost(t)
	cmd := h.Command("ADD", conf(h, "1.0.0", `,"on":{"ADD":"hang"}`))
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	h.Ready(cmd.Start)
	nodetest.OK(t, cmd.Process.Signal(sig))
	_ = cmd.Wait() // its status is what counts
	if said := h.Said(stdout.Bytes()); cmd.ProcessState.ExitCode() != 1 || said.CNIVersion != "1.0.0" || said.Code != 11 {
		t.Errorf("ended with %v, %+v", cmd.ProcessState, said)
	}
	h.wantNothingLeft("ADD eth0", "DEL eth0")
}

// wantNothingLeft wants these calls of the fake, and no record.
func (h *Host) wantNothingLeft(calls ...string) {
	h.Helper()
	nodetest.Equal(h, "calls", h.Calls(), calls)
	nodetest.Equal(h, "left", h.Files("state"), nil)
}
