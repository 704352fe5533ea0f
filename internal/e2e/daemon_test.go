package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/multinet/multinet"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// thick returns a configuration of multinet-shim that uses this node's daemon.
func (n *node) thick(version string, delegates ...object) object {
	return n.with(n.multinet(version, delegates...), object{
		"type": "multinet-shim", "daemonSocketDir": n.file("d"), "delQueueDir": n.file("queue"), "delQueueWait": "0s",
	})
}

// socket is the path of the daemon's socket.
func (n *node) socket() string { return n.file("d", multinet.SocketName) }

// A daemon is one multinetd process.
type daemon struct {
	n    *node
	cmd  *exec.Cmd
	log  head
	done chan struct{} // closed once it has exited
}

// A daemonConf says how a daemon is started.
type daemonConf struct {
	keys object            // added to its file; a nil value removes a key
	env  map[string]string // added to PATH
}

// daemon starts a daemon and waits until it is ready.
func (n *node) daemon(conf daemonConf) *daemon {
	n.Helper()
	d := n.startDaemon(conf)
	d.ready()
	return d
}

// startDaemon starts a daemon without waiting until it is ready.
func (n *node) startDaemon(conf daemonConf) *daemon {
	n.Helper()
	keys := object{
		"socketDir": n.file("d"), "queueDir": n.file("queue"), "cniDir": n.file("state"),
		"logFormat": "json",
	}
	maps.Copy(keys, conf.keys)
	maps.DeleteFunc(keys, func(_ string, v any) bool { return v == nil })
	n.write(keys, "daemon.json")
	name := filepath.Join(n.from, "multinetd")
	if conf.env["METACNI_STEPS"] != "" {
		name = filepath.Join(stepping, name)
	}
	d := &daemon{n: n, done: make(chan struct{})}
	d.cmd = exec.CommandContext(n.Context(), built(name), "--config", n.file("daemon.json"))
	d.cmd.Env = []string{"PATH=" + n.path}
	for _, k := range slices.Sorted(maps.Keys(conf.env)) {
		d.cmd.Env = append(d.cmd.Env, k+"="+conf.env[k])
	}
	d.cmd.Stderr = &d.log
	d.cmd.WaitDelay = time.Second // a plugin may hold its stderr
	nodetest.OK(n, d.cmd.Start())
	go func() {
		defer close(d.done)
		_ = d.cmd.Wait() // see ProcessState
	}()
	n.Cleanup(func() {
		d.kill()
		for _, word := range []string{"panic: ", `"msg":"panic"`, "fatal error: ", "DATA RACE"} {
			if strings.Contains(d.log.String(), word) {
				n.Errorf("the daemon's log contains %q:\n%s", word, d.log.String())
			}
		}
		if n.Failed() && !n.logged { // only the last daemon's log
			n.logged = true
			log := d.log.String()
			n.Logf("the daemon's log ends with:\n%s", log[max(0, len(log)-2<<10):])
		}
	})
	return d
}

// over reports whether the daemon has exited.
func (d *daemon) over() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// ready waits until the daemon takes ADDs.
func (d *daemon) ready() {
	d.n.Helper()
	d.n.until("the daemon is ready", func() bool {
		if d.over() {
			d.n.Fatalf("the daemon has exited: %v\n%s", d.cmd.ProcessState, d.log.String())
		}
		return d.isReady()
	})
}

// readyOrOver waits until the daemon takes ADDs or has exited. A daemon that is
// killed at a step may reach it earlier than in the run without a kill.
func (d *daemon) readyOrOver() {
	d.n.Helper()
	d.n.until("the daemon is ready, or dead", func() bool { return d.over() || d.isReady() })
}

func (d *daemon) isReady() bool {
	r, err := d.n.ask(http.MethodGet, wire.PathReady, nil)
	return err == nil && r.status == http.StatusOK
}

// kill kills the daemon and waits until it has exited.
func (d *daemon) kill() {
	_ = d.cmd.Process.Kill() // fails if it has exited
	<-d.done
}

// signal sends the daemon a signal.
func (d *daemon) signal(s os.Signal) {
	d.n.Helper()
	nodetest.OK(d.n, d.cmd.Process.Signal(s))
}

// ended waits until the daemon has exited, which must be with status 0.
func (d *daemon) ended() {
	d.n.Helper()
	<-d.done
	if code := d.cmd.ProcessState.ExitCode(); code != 0 {
		d.n.Errorf("the daemon ended with %v\n%s", d.cmd.ProcessState, d.log.String())
	}
}

// wasKilled fails the test unless the daemon died of SIGKILL.
func (d *daemon) wasKilled() {
	d.n.Helper()
	if ws, ok := d.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		d.n.Fatalf("the daemon, to be killed: %v\n%s", d.cmd.ProcessState, d.log.String())
	}
}

// A reply is the daemon's answer to a request.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// ask sends a request to the daemon and returns its reply.
func (n *node) ask(method, path string, body []byte) (reply, error) {
	return askAt(n.Context(), n.socket(), method, path, body)
}

// post sends a request to the daemon and returns its reply.
func (n *node) post(path string, body []byte) reply {
	n.Helper()
	r, err := n.ask(http.MethodPost, path, body)
	if err != nil {
		n.Errorf("%s: %v", path, err)
	}
	return r
}

func askAt(ctx context.Context, socket, method, path string, body []byte) (reply, error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	r, err := http.NewRequestWithContext(ctx, method, "http://dummy"+path, bytes.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	a, err := transport.RoundTrip(r)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = a.Body.Close() }()
	text, err := io.ReadAll(a.Body)
	return reply{a.StatusCode, a.Header, text}, err
}

// request returns the message of a shim for p, with the keys of more added.
func (n *node) request(command string, p *pod, more object) []byte {
	n.Helper()
	conf, err := json.Marshal(p.conf)
	nodetest.OK(n, err)
	message := object{
		"env": object{
			"CNI_COMMAND": command, "CNI_CONTAINERID": p.id, "CNI_NETNS": p.netns, "CNI_IFNAME": p.ifname,
			"CNI_PATH": n.bin, "CNI_ARGS": "",
		},
		"config": conf, "apiVersion": wire.Version,
	}
	text, err := json.Marshal(n.with(message, more))
	nodetest.OK(n, err)
	return text
}

// done fails the test unless the reply says that a command other than ADD has succeeded.
func (r reply) done(t testing.TB) {
	t.Helper()
	if r.status != http.StatusOK || len(r.body) > 0 {
		t.Errorf("status %d: %s", r.status, r.body)
	}
}

// says fails the test unless the reply has the status, and an error object with
// the code and each of words.
func (r reply) says(t testing.TB, status int, code uint, words ...string) {
	t.Helper()
	if r.status != status {
		t.Errorf("status %d, want %d: %s", r.status, status, r.body)
	}
	var e struct {
		Code         uint
		Msg, Details string
	}
	if err := decodeOne(r.body, &e); err != nil {
		t.Errorf("no error object: %v: %q", err, r.body)
		return
	}
	if e.Code != code || e.Msg == "" {
		t.Errorf("code %d, want %d: %s", e.Code, code, r.body)
	}
	for _, word := range words {
		if !strings.Contains(e.Msg+" "+e.Details, word) {
			t.Errorf("the error does not say %q: %s", word, r.body)
		}
	}
	if got := r.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type %q", got)
	}
	if got := r.header.Get(wire.VersionHeader); got != fmt.Sprint(wire.Version) {
		t.Errorf("%s %q", wire.VersionHeader, got)
	}
}

// queued lists the DELs in the queue for the next daemon.
func (n *node) queued() []string {
	n.Helper()
	return slices.DeleteFunc(n.list(n.file("queue")), func(name string) bool { return name == ".reader" })
}

// noTrace waits until the queue is empty and no plugin runs, and fails the test
// if anything is left of any container.
func (n *node) noTrace() {
	n.Helper()
	n.until("the queue is empty", func() bool { return len(n.queued()) == 0 })
	// An orphan releases its lock just before it exits.
	n.orphansEnd()
	n.nothingLeft()
}
