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
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
)

// An invalid command line or file ends the daemon at once.
func TestMistakeInTheConfigurationEndsTheDaemon(t *testing.T) {
	t.Parallel()
	bad := filepath.Join(t.TempDir(), "bad.json")
	nodetest.OK(t, os.WriteFile(bad, []byte("{"), 0o600))
	for _, args := range [][]string{{"--config", bad}, {"--config", "/absent"}, {"--what"}, {"--socket-dir", "x"}} {
		if err := run(t.Context(), args, "/absent", nil, io.Discard, io.Discard); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{"--version"}, "/absent", nil, &out, io.Discard); err != nil || !strings.HasPrefix(out.String(), "multinetd ") {
		t.Errorf("%v: %s", err, out.String())
	}
	if err := run(t.Context(), []string{"--help"}, "/absent", nil, &out, io.Discard); err != nil || !strings.Contains(out.String(), "-socket-dir") {
		t.Errorf("%v: %s", err, out.String())
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
