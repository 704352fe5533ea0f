package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/metacni/metacni/delegate/thick/wire"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
)

// thick returns a configuration of multinet-shim that uses this node's daemon.
func (n *node) thick(version string, delegates ...object) object {
	return n.with(n.multinet(version, delegates...), object{
		"type": "multinet-shim", "daemonSocketDir": n.File("d"), "delQueueDir": n.File("queue"), "delQueueWait": "0s",
	})
}

// socket is the path of the daemon's socket.
func (n *node) socket() string { return n.File("d", multinet.SocketName) }

// A daemon is one multinetd process.
type daemon struct {
	*process.Process
	n *node
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
		"socketDir": n.File("d"), "queueDir": n.File("queue"), "cniDir": n.File("state"),
		"logFormat": "json",
	}
	maps.Copy(keys, conf.keys)
	maps.DeleteFunc(keys, func(_ string, v any) bool { return v == nil })
	n.Write(keys, "daemon.json")
	cmd := exec.CommandContext(n.Context(), n.ours("multinetd", conf.env), "--config", n.File("daemon.json"))
	cmd.Env = []string{"PATH=" + process.Path}
	for _, k := range slices.Sorted(maps.Keys(conf.env)) {
		cmd.Env = append(cmd.Env, k+"="+conf.env[k])
	}
	n.daemons++
	return &daemon{n.Serve(n.File(fmt.Sprintf("daemon%d.log", n.daemons)), cmd), n}
}

// ready waits until the daemon takes ADDs.
func (d *daemon) ready() {
	d.n.Helper()
	d.n.Await(d.Process, d.n.socket(), wire.PathReady)
}

// readyOrOver waits until the daemon takes ADDs or has exited. A daemon that is
// killed at a step may reach it earlier than in the run without a kill.
func (d *daemon) readyOrOver() {
	d.n.Helper()
	d.n.Until("the daemon is ready, or dead", func() bool { return d.Over() || d.n.Answers(d.n.socket(), wire.PathReady) })
}

// signal sends the daemon a signal.
func (d *daemon) signal(s syscall.Signal) {
	d.n.Helper()
	nodetest.OK(d.n, d.Signal(s))
}

// ended waits until the daemon has exited, which must be with status 0.
func (d *daemon) ended() {
	d.n.Helper()
	<-d.Done
	if code := d.Cmd.ProcessState.ExitCode(); code != 0 {
		d.n.Errorf("the daemon ended with %v\n%s", d.Cmd.ProcessState, d.Log())
	}
}

// wasKilled fails the test unless the daemon died of SIGKILL.
func (d *daemon) wasKilled() {
	d.n.Helper()
	if ws, ok := d.Cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		d.n.Fatalf("the daemon, to be killed: %v\n%s", d.Cmd.ProcessState, d.Log())
	}
}

// A reply is the daemon's answer to a request.
type reply struct{ process.Reply }

// ask sends a request to the daemon and returns its reply.
func (n *node) ask(method, path string, body []byte) (reply, error) {
	r, err := process.Ask(n.Context(), n.socket(), method, path, body)
	return reply{r}, err
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

// request returns the message of a shim for p, with the keys of more added.
func (n *node) request(command string, p *pod, more object) []byte {
	n.Helper()
	conf, err := json.Marshal(p.Conf)
	nodetest.OK(n, err)
	message := object{
		"env": object{
			"CNI_COMMAND": command, "CNI_CONTAINERID": p.ID, "CNI_NETNS": p.NetNS, "CNI_IFNAME": p.IfName,
			"CNI_PATH": n.Bin, "CNI_ARGS": "",
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
	if r.Status != http.StatusOK || len(r.Body) > 0 {
		t.Errorf("status %d: %s", r.Status, r.Body)
	}
}

// says fails the test unless the reply has the status, and an error object with
// the code and each of words.
func (r reply) says(t testing.TB, status int, code uint, words ...string) {
	t.Helper()
	if r.Status != status {
		t.Errorf("status %d, want %d: %s", r.Status, status, r.Body)
	}
	var e struct {
		Code         uint
		Msg, Details string
	}
	if err := json.Unmarshal(r.Body, &e); err != nil {
		t.Errorf("no error object: %v: %q", err, r.Body)
		return
	}
	if e.Code != code || e.Msg == "" {
		t.Errorf("code %d, want %d: %s", e.Code, code, r.Body)
	}
	for _, word := range words {
		if !strings.Contains(e.Msg+" "+e.Details, word) {
			t.Errorf("the error does not say %q: %s", word, r.Body)
		}
	}
	nodetest.Equal(t, "Content-Type", r.Header.Get("Content-Type"), "application/json")
	nodetest.Equal(t, wire.VersionHeader, r.Header.Get(wire.VersionHeader), fmt.Sprint(wire.Version))
}

// queued lists the DELs in the queue for the next daemon.
func (n *node) queued() []string {
	n.Helper()
	return slices.DeleteFunc(n.List(n.File("queue")), func(name string) bool { return name == ".reader" })
}

// noTrace waits until the queue is empty and no plugin runs, and fails the test
// if anything is left of any container.
func (n *node) noTrace() {
	n.Helper()
	n.Until("the queue is empty", func() bool { return len(n.queued()) == 0 })
	// An orphan releases its lock just before it exits.
	n.OrphansEnd()
	n.nothingLeft()
}
