package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whatever is wrong with the command line or the file ends the daemon at once.
func TestS25Run(t *testing.T) {
	t.Parallel()
	bad := filepath.Join(t.TempDir(), "bad.json")
	if err := os.WriteFile(bad, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
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

func TestNotify(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "x") //nolint:usetesting // that of t is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: dir + "/s", Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := notify(dir+"/s", "READY=1"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	if n, err := c.Read(b); err != nil || string(b[:n]) != "READY=1" {
		t.Errorf("%q, %v", b[:n], err)
	}
	if err := notify("", "READY=1"); err != nil {
		t.Error(err)
	}
	if err := notify(dir+"/absent", "READY=1"); err == nil {
		t.Error("nobody was told, and no error")
	}
}

// A daemon that waits for another to end says so.
func TestWaits(t *testing.T) {
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
