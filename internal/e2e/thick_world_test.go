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
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// thick returns a configuration of multinet-shim that uses this world's daemon.
func (w *world) thick(version string, delegates ...object) object {
	return w.with(w.multinet(version, delegates...), object{
		"type": "multinet-shim", "daemonSocketDir": w.file("d"), "delQueueDir": w.file("queue"), "delQueueWait": "0s",
	})
}

// socket is the path of the daemon's socket.
func (w *world) socket() string { return w.file("d", wire.SocketName) }

// A daemon is one multinetd process.
type daemon struct {
	w    *world
	cmd  *exec.Cmd
	log  journal
	done chan struct{} // closed once it has exited
}

// A journal is a log that can be read while it is written.
type journal struct {
	mu   sync.Mutex
	text head
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return string(j.text.text)
}

// A daemonConf says how a daemon is started.
type daemonConf struct {
	keys object            // added to its file; a nil value removes a key
	args []string          // further arguments
	env  map[string]string // added to PATH
}

// daemon starts a daemon and waits until it is ready.
func (w *world) daemon(conf daemonConf) *daemon {
	w.t.Helper()
	d := w.startDaemon(conf)
	d.ready()
	return d
}

// startDaemon starts a daemon without waiting until it is ready.
func (w *world) startDaemon(conf daemonConf) *daemon {
	w.t.Helper()
	keys := object{
		"socketDir": w.file("d"), "queueDir": w.file("queue"), "cniDir": w.file("state"),
		"logFormat": "json",
	}
	maps.Copy(keys, conf.keys)
	maps.DeleteFunc(keys, func(_ string, v any) bool { return v == nil })
	w.write(keys, "daemon.json")
	name := "multinetd"
	if conf.env["METACNI_STEPS"] != "" {
		name = filepath.Join(stepping, name)
	}
	d := &daemon{w: w, done: make(chan struct{})}
	d.cmd = exec.CommandContext(w.t.Context(), built(name), append([]string{"--config", w.file("daemon.json")}, conf.args...)...)
	d.cmd.Env = []string{"PATH=" + w.path}
	for _, k := range slices.Sorted(maps.Keys(conf.env)) {
		d.cmd.Env = append(d.cmd.Env, k+"="+conf.env[k])
	}
	d.cmd.Stderr = &d.log
	d.cmd.WaitDelay = time.Second // a plugin may hold its stderr
	if err := d.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		defer close(d.done)
		_ = d.cmd.Wait() // see ProcessState
	}()
	w.t.Cleanup(func() {
		d.kill()
		for _, word := range []string{"panic: ", `"msg":"panic"`, "fatal error: ", "DATA RACE"} {
			if strings.Contains(d.log.String(), word) {
				w.t.Errorf("the daemon's log contains %q:\n%s", word, d.log.String())
			}
		}
		if w.t.Failed() && !w.logged { // only the last daemon's log
			w.logged = true
			log := d.log.String()
			w.t.Logf("the daemon's log ends with:\n%s", log[max(0, len(log)-2<<10):])
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
	d.w.t.Helper()
	d.w.until("the daemon is ready", func() bool {
		if d.over() {
			d.w.t.Fatalf("the daemon has exited: %v\n%s", d.cmd.ProcessState, d.log.String())
		}
		return d.isReady()
	})
}

// readyOrOver waits until the daemon takes ADDs or has exited. A daemon that is
// killed at a step may reach it earlier than in the run without a kill.
func (d *daemon) readyOrOver() {
	d.w.t.Helper()
	d.w.until("the daemon is ready, or dead", func() bool { return d.over() || d.isReady() })
}

func (d *daemon) isReady() bool {
	r, err := d.w.ask(http.MethodGet, wire.PathReady, nil)
	return err == nil && r.status == http.StatusOK
}

// kill kills the daemon and waits until it has exited.
func (d *daemon) kill() {
	_ = d.cmd.Process.Kill() // fails if it has exited
	<-d.done
}

// signal sends the daemon a signal.
func (d *daemon) signal(s os.Signal) {
	d.w.t.Helper()
	if err := d.cmd.Process.Signal(s); err != nil {
		d.w.t.Fatal(err)
	}
}

// ended waits until the daemon has exited, which must be with status 0.
func (d *daemon) ended() {
	d.w.t.Helper()
	<-d.done
	if code := d.cmd.ProcessState.ExitCode(); code != 0 {
		d.w.t.Errorf("the daemon ended with %v\n%s", d.cmd.ProcessState, d.log.String())
	}
}

// wasKilled fails the test unless the daemon died of SIGKILL.
func (d *daemon) wasKilled() {
	d.w.t.Helper()
	if ws, ok := d.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		d.w.t.Fatalf("the daemon, to be killed: %v\n%s", d.cmd.ProcessState, d.log.String())
	}
}

// A reply is the daemon's answer to a request.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// ask sends a request to the daemon and returns its reply.
func (w *world) ask(method, path string, body []byte) (reply, error) {
	return askAt(w.t.Context(), w.socket(), method, path, body)
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
func (w *world) request(command string, p *pod, more object) []byte {
	w.t.Helper()
	conf, err := json.Marshal(p.conf)
	if err != nil {
		w.t.Fatal(err)
	}
	message := object{
		"env": object{
			"CNI_COMMAND": command, "CNI_CONTAINERID": p.id, "CNI_NETNS": p.netns, "CNI_IFNAME": p.ifname,
			"CNI_PATH": w.bin, "CNI_ARGS": "",
		},
		"config": conf, "apiVersion": wire.Version,
	}
	text, err := json.Marshal(w.with(message, more))
	if err != nil {
		w.t.Fatal(err)
	}
	return text
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
func (w *world) queued() []string {
	w.t.Helper()
	return slices.DeleteFunc(w.list(w.file("queue")), func(name string) bool { return name == ".reader" })
}

// noTrace waits until the queue is empty and no plugin runs, and fails the test
// if anything is left of any container.
func (w *world) noTrace() {
	w.t.Helper()
	w.until("the queue is empty", func() bool { return len(w.queued()) == 0 })
	// An orphan releases its lock just before it exits.
	w.orphansEnd()
	w.nothingLeft()
}
