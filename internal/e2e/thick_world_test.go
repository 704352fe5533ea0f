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

// thick returns a configuration of multinet-shim, whose daemon is this world's.
func (w *world) thick(version string, delegates ...object) object {
	return w.with(w.multinet(version, delegates...), object{
		"type": "multinet-shim", "daemonSocketDir": w.file("d"), "delQueueDir": w.file("queue"), "delQueueWait": "0s",
	})
}

// socket is where the daemon listens.
func (w *world) socket() string { return w.file("d", wire.SocketName) }

// A daemon is one multinetd.
type daemon struct {
	w    *world
	cmd  *exec.Cmd
	log  journal
	done chan struct{} // closed once it has ended
}

// A journal is a log that is read while it is written.
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

// A daemonConf is what a daemon is started with.
type daemonConf struct {
	keys object            // of its file, beside the world's own; nil is none
	args []string          // beside the file
	env  map[string]string // beside PATH
}

// daemon starts one, and returns once it takes an ADD.
func (w *world) daemon(conf daemonConf) *daemon {
	w.t.Helper()
	d := w.startDaemon(conf)
	d.ready()
	return d
}

// startDaemon starts one, which may have to wait for another.
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
	d.cmd = exec.CommandContext(w.t.Context(), built(w.t, name), append([]string{"--config", w.file("daemon.json")}, conf.args...)...)
	d.cmd.Env = []string{"PATH=" + w.path}
	for _, k := range slices.Sorted(maps.Keys(conf.env)) {
		d.cmd.Env = append(d.cmd.Env, k+"="+conf.env[k])
	}
	d.cmd.Stderr = &d.log
	d.cmd.WaitDelay = time.Second // a plugin may have its stderr
	if err := d.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		defer close(d.done)
		_ = d.cmd.Wait() // ProcessState says all
	}()
	w.t.Cleanup(func() {
		d.kill()
		for _, word := range []string{"panic: ", `"msg":"panic"`, "fatal error: ", "DATA RACE"} {
			if strings.Contains(d.log.String(), word) {
				w.t.Errorf("the daemon has a %q:\n%s", word, d.log.String())
			}
		}
		if w.t.Failed() && !w.logged { // the last one's
			w.logged = true
			log := d.log.String()
			w.t.Logf("the daemon's log ends with:\n%s", log[max(0, len(log)-2<<10):])
		}
	})
	return d
}

// over reports whether the daemon has ended.
func (d *daemon) over() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// ready waits until an ADD would be taken.
func (d *daemon) ready() {
	d.w.t.Helper()
	d.w.until("the daemon is ready", func() bool {
		if d.over() {
			d.w.t.Fatalf("the daemon has ended: %v\n%s", d.cmd.ProcessState, d.log.String())
		}
		return d.isReady()
	})
}

// readyOrOver waits until an ADD would be taken, or the daemon is dead: one that
// is killed at a step may come to that sooner than the one it was seen in.
func (d *daemon) readyOrOver() {
	d.w.t.Helper()
	d.w.until("the daemon is ready, or dead", func() bool { return d.over() || d.isReady() })
}

func (d *daemon) isReady() bool {
	r, err := d.w.ask(http.MethodGet, wire.PathReady, nil)
	return err == nil && r.status == http.StatusOK
}

// kill kills the daemon with all it could still say.
func (d *daemon) kill() {
	_ = d.cmd.Process.Kill() // or it has ended
	<-d.done
}

// signal asks the daemon to stop.
func (d *daemon) signal(s os.Signal) {
	d.w.t.Helper()
	if err := d.cmd.Process.Signal(s); err != nil {
		d.w.t.Fatal(err)
	}
}

// ended waits until the daemon has ended by itself, as it should.
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

// A reply is what a daemon answers.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// ask sends a request to the daemon as anybody may, and returns what comes.
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

// request is the message of a shim for p, with more keys or others.
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

// says fails the test unless the daemon's answer is the status with an error
// object of the code and each of words.
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

// queued lists the DELs that are left to the next daemon.
func (w *world) queued() []string {
	w.t.Helper()
	return slices.DeleteFunc(w.list(w.file("queue")), func(name string) bool { return name == ".reader" })
}

// noTrace fails the test where anything is left of any container: in the
// queue, running, or as w.nothingLeft has it.
func (w *world) noTrace() {
	w.t.Helper()
	w.until("the queue is empty", func() bool { return len(w.queued()) == 0 })
	// One that nobody waits for has let go of its lock just before it ends.
	w.orphansEnd()
	w.nothingLeft()
}
