package thick

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick/shim"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// playDaemon is the whole program of a daemon.
func playDaemon(_ *testing.T, socket string) {
	Main(plugin.Plugin{
		Add: func(_ context.Context, c *plugin.Call) error {
			_, err := fmt.Fprintf(c.Stdout, `{"cniVersion":"1.0.0","interfaces":[{"name":%q}]}`, c.IfName)
			return err
		},
		Del:   func(context.Context, *plugin.Call) error { return nil },
		Steps: map[string]plugin.Step{"rule": {Check: func(context.Context, *plugin.Call) error { return errors.New("the rule is gone") }}},
	}, socket)
	os.Exit(0)
}

// playShim is the whole program of a shim.
func playShim(_ *testing.T, socket string) {
	shim.Main(socket)
	os.Exit(0)
}

// runShim runs the shim, without CNI_COMMAND if command is empty.
// keys are more keys of the configuration.
func runShim(t *testing.T, command, socket, keys string) (stdout, stderr string, status int) {
	t.Helper()
	var errs bytes.Buffer
	s := start(t, "shim", socket, func(c *exec.Cmd) {
		c.Stderr = &errs
		if command != "" {
			c.Env = append(c.Env, "CNI_COMMAND="+command, "CNI_CONTAINERID=c1", "CNI_NETNS=/run/netns/c1", "CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin")
		}
	})
	_, _ = io.WriteString(s.in, `{"cniVersion":"1.1.0","name":"pods","type":"x"`+keys+"}") // it may not be read
	_ = s.in.Close()
	out, err := io.ReadAll(s.out)
	nodetest.OK(t, err)
	_ = s.Wait() // its status is what counts
	return string(out), errs.String(), s.ProcessState.ExitCode()
}

// startDaemon returns a daemon that listens, and its log.
func startDaemon(t *testing.T, socket string) (*actor, *nodetest.Log) {
	t.Helper()
	log := new(nodetest.Log)
	d := start(t, "daemon", socket, func(c *exec.Cmd) { c.Stderr = log })
	nodetest.Until(t, "listening", func() bool {
		c, err := net.Dial("unix", socket)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}, log)
	return d, log
}

// Two programs of one line each are a daemon and its shim.
func TestMainOfDaemonAndShim(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(nodetest.ShortDir(t), "run", "d.sock")
	d, log := startDaemon(t, socket)
	if out, stderr, status := runShim(t, "ADD", socket, ""); status != 0 || !strings.Contains(out, `"name": "eth0"`) {
		t.Errorf("ADD: status %d, %s, %s", status, out, stderr)
	}
	if out, _, status := runShim(t, "CHECK", socket, ""); status != 1 || !strings.Contains(out, "the plugin has no CHECK") {
		t.Errorf("CHECK: status %d, %s", status, out)
	}
	if out, _, status := runShim(t, "CHECK", socket, `,"step":"rule"`); status != 1 || !strings.Contains(out, "the rule is gone") {
		t.Errorf("CHECK of a step: status %d, %s", status, out)
	}
	nodetest.OK(t, d.Process.Signal(syscall.SIGTERM))
	if err := d.Wait(); err != nil || log.Count("msg=request command=ADD") != 1 || log.Count("level=WARN msg=request command=CHECK") != 2 {
		t.Errorf("the daemon ends with %v: %s", err, log)
	}

	if out, _, status := runShim(t, "DEL", socket, ""); status != 1 || !strings.Contains(out, `"code":11`) {
		t.Errorf("DEL without the daemon: status %d, %s", status, out)
	}
	startDaemon(t, socket)
	if out, _, status := runShim(t, "DEL", socket, ""); status != 0 || out != "" {
		t.Errorf("DEL of the next daemon: status %d, %s", status, out)
	}
}

// Without the absolute path of a socket neither program does anything. Somebody who runs the
// shim by hand learns what it is.
func TestMainSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for _, socket := range []string{"", "run/d.sock"} {
		log := new(nodetest.Log)
		d := start(t, "daemon", socket, func(c *exec.Cmd) { c.Stderr = log })
		if err := d.Wait(); d.ProcessState.ExitCode() != 1 || log.Count("not an absolute path") != 1 {
			t.Errorf("daemon at %q: %v, %s", socket, err, log)
		}
		if out, _, status := runShim(t, "DEL", socket, ""); status != 1 || !strings.Contains(out, `"code":7`) || !strings.Contains(out, "not absolute") {
			t.Errorf("shim of %q: status %d, %s", socket, status, out)
		}
	}
	if out, stderr, status := runShim(t, "", "/run/d.sock", ""); status != 0 || out != "" || !strings.HasPrefix(stderr, "CNI shim of the daemon at /run/d.sock "+plugin.Version()) {
		t.Errorf("by hand: status %d, %s, %s", status, out, stderr)
	}
}

// Requests that are refused or have no attachment have a line too. The line of a slow ADD says
// where its time went.
func TestRequestsAreLogged(t *testing.T) {
	t.Parallel()
	const split = ` timing.lock=1s timing.record=2ms timing.plugins="ADD bridge pods eth0 998ms"`
	timing := lifecycle.Timing{Whole: 2 * time.Second, Lock: time.Second, Record: 2 * time.Millisecond, Plugins: []lifecycle.PluginTime{
		{Command: "ADD", Plugin: "bridge", Network: "pods", IfName: "eth0", Took: 998 * time.Millisecond},
	}}
	for want, e := range map[string]Event{
		"level=WARN msg=request duration=0s queued=0s status=403 code=999 error=no uid=1000\n": {UID: 1000, Status: 403, Err: errors.New("no")},
		"level=WARN msg=request command=STATUS duration=0s queued=0s status=503 pod=p code=50 error=draining uid=0\n": {
			Command: "STATUS", Status: 503, Err: types.NewError(50, "draining", ""),
		},
		"": {Command: "STATUS", Status: 200},
		"level=INFO msg=request command=ADD duration=2s queued=0s status=200 pod=p\n":              {Command: "ADD", Status: 200, Duration: 2 * time.Second, Timing: timing},
		"level=INFO msg=request command=DEL duration=1m0s queued=0s status=200 pod=p\n":            {Command: "DEL", Status: 200, Duration: time.Minute},
		"level=WARN msg=request command=ADD duration=3s queued=1s status=200 pod=p" + split + "\n": {Command: "ADD", Status: 200, Duration: 3 * time.Second, Queued: time.Second, Slow: true, Timing: timing},
		"level=WARN msg=request command=ADD duration=3s queued=0s status=500 pod=p" + split + " code=999 error=no uid=0\n": {
			Command: "ADD", Status: 500, Duration: 3 * time.Second, Err: errors.New("no"), Slow: true, Timing: timing,
		},
	} {
		var log nodetest.Log
		pod := "p"
		if e.Command == "" {
			pod = ""
		}
		e.Log(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), slog.String("pod", pod))
		if got := log.String(); !strings.HasSuffix(got, want) || (got == "") != (want == "") {
			t.Errorf("log: %s, want %s", got, want)
		}
	}
}
