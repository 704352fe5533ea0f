package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
)

// An invalid command line or file ends the daemon, or the webhook, at once.
func TestMistakesEndTheProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, cert := certify(t, dir)
	bad, wrong := filepath.Join(dir, "bad.json"), filepath.Join(dir, "wrong.json")
	nodetest.OK(t, errors.Join(os.WriteFile(bad, []byte("{"), 0o600), os.WriteFile(wrong, []byte(`{"namespaceIsolation":5}`), 0o600)))
	webhook := func(args ...string) []string { return slices.Concat([]string{"webhook"}, cert, args) }
	for _, tt := range []struct {
		says string
		args []string
	}{
		{"bad.json", []string{"--config", bad}},
		{"/absent", []string{"--config", "/absent"}},
		{"what", []string{"--what"}},
		{"socketDir", []string{"--socket-dir", "x"}},
		{"--cert", []string{"webhook"}},
		{"--key", webhook()[:3]},
		{"no such file", []string{"webhook", "--cert", "/absent", "--key", "/absent"}},
		{"bad.json", webhook("--config", bad)},
		{"namespaceIsolation", webhook("--config", wrong)},
		{"/absent", webhook("--config", "/absent")},
		{`"now"`, webhook("now")},
		{"what", webhook("--what")},
		{"no-port", webhook("--address", "no-port")},
		{"metrics", webhook("--metrics-address", "no-port")},
	} {
		err := run(t.Context(), tt.args, "/absent", nil, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%q: err = %v, want %s", tt.args, err, tt.says)
		}
	}
	for says, args := range map[string][]string{"multinetd ": {"--version"}, "-socket-dir": {"--help"}, "-cert": {"webhook", "--help"}} {
		var out bytes.Buffer
		if err := run(t.Context(), args, "/absent", nil, &out, io.Discard); err != nil || !strings.Contains(out.String(), says) {
			t.Errorf("%q: %v: %s", args, err, out.String())
		}
	}
}

// The init container of the DaemonSet installs the shim of the image on the node. It
// replaces an older one that may be running.
func TestShimIsInstalledFromBesideTheDaemon(t *testing.T) {
	t.Parallel()
	image, node := t.TempDir(), t.TempDir()
	self := func() (string, error) { return filepath.Join(image, "multinetd"), nil }
	if err := installShim(self, node); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an image without the shim: %v", err)
	}
	shim := filepath.Join(node, shimType)
	for _, version := range []string{"one", "two"} {
		nodetest.OK(t, os.WriteFile(filepath.Join(image, shimType), []byte(version), 0o755))
		old, _ := os.Stat(shim) // nil the first time
		nodetest.OK(t, installShim(self, node))
		text, err := os.ReadFile(shim)
		info, _ := os.Stat(shim)
		if err != nil || string(text) != version || info.Mode() != 0o755 || os.SameFile(old, info) {
			t.Errorf("%s: %q, %v, %v", version, text, info.Mode(), err)
		}
	}
	if entries, _ := os.ReadDir(node); len(entries) != 1 {
		t.Errorf("more than the shim: %v", entries)
	}
	if err := run(t.Context(), []string{"--install-shim", node}, "/absent", nil, io.Discard, io.Discard); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the test has no shim beside it: %v", err)
	}
}

func TestServiceManagerIsNotified(t *testing.T) {
	t.Parallel()
	dir := nodetest.ShortDir(t)
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: dir + "/s", Net: "unixgram"})
	nodetest.OK(t, err)
	defer c.Close()
	nodetest.OK(t, notify(dir+"/s", "READY=1"))
	b := make([]byte, 100)
	if n, err := c.Read(b); err != nil || string(b[:n]) != "READY=1" {
		t.Errorf("%q, %v", b[:n], err)
	}
	nodetest.Code(t, notify("", "READY=1"), 0)
	for err = nil; err == nil; { // until nobody reads for too long
		err = notify(dir+"/s", "READY=1")
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a service manager that does not read: %v", err)
	}
	if err := notify(dir+"/absent", "READY=1"); err == nil {
		t.Error("nobody was told, and no error")
	}
}

// A daemon that waits for another one to end logs that it does.
func TestWaitingForAnotherDaemonIsLogged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "").start(t)
	ctx, cancel := context.WithCancel(t.Context())
	stderr, log := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, []string{"--socket-dir", w.conf.SocketDir}, filepath.Join(w.dir, "none"), nil, io.Discard, log)
		_ = log.Close() // always nil
		ended <- err
	}()
	line, err := bufio.NewReader(stderr).ReadString('\n')
	if err != nil || !strings.Contains(line, "waiting for another daemon") || !strings.Contains(line, w.conf.SocketDir) {
		t.Errorf("logged %q, %v", line, err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
}
