package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/internal/programtest"
	"github.com/metacni/metacni/examples/multinet/multinet"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// The tests here run the shim as the process that a runtime starts. The daemon
// is a stand-in; the real one is tested with the shim in examples/multinetd.

func TestMain(m *testing.M) { programtest.Main(m, "multinet-shim", main) }

// A daemon answers with what a test wants.
type daemon struct {
	dir    string // of its socket
	answer func(wire.Request) (status int, body string)

	mu   sync.Mutex
	seen []wire.Request
}

func newDaemon(t *testing.T, answer func(wire.Request) (int, string)) *daemon {
	t.Helper()
	d := &daemon{dir: socketDir(t), answer: answer}
	l, err := net.Listen("unix", filepath.Join(d.dir, multinet.SocketName))
	nodetest.OK(t, err)
	s := &http.Server{Handler: d}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return d
}

// socketDir is short enough for a socket's path.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "x") //nolint:usetesting // that of t is too long for a socket
	nodetest.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (d *daemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m wire.Request
	data, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		panic(err)
	}
	d.mu.Lock()
	d.seen = append(d.seen, m)
	d.mu.Unlock()
	status, body := d.answer(m)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

func (d *daemon) commands() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	for _, m := range d.seen {
		all = append(all, m.Env["CNI_COMMAND"])
	}
	return all
}

func conf(version, socketDir, more string) string {
	return fmt.Sprintf(`{"cniVersion":%q,"name":"multi","type":"multinet-shim","daemonSocketDir":%q,"password":"hunter2hunter2"%s}`, version, socketDir, more)
}

const result = `{"Result":{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.2/24"}]}}`

// Every command is handed on, and the result of the daemon is printed.
func TestCommandsArePassedOn(t *testing.T) {
	t.Parallel()
	h := programtest.NewHost(t)
	d := newDaemon(t, func(m wire.Request) (int, string) {
		return 200, map[string]string{"ADD": result}[m.Env["CNI_COMMAND"]]
	})
	commands := []string{"ADD", "CHECK", "STATUS", "GC", "DEL"}
	for _, command := range commands {
		stdout, stderr, code := h.Run(command, conf("1.1.0", d.dir, ""))
		if code != 0 || stderr != "" || strings.Contains(string(stdout), "10.9.0.2") != (command == "ADD") || command != "ADD" && len(stdout) > 0 {
			t.Errorf("%s: status %d, %s, %q", command, code, stdout, stderr)
		}
	}
	nodetest.Equal(t, "commands", d.commands(), commands)
}

// What the daemon says of an error is said to the runtime, with its code and
// in the version of the configuration.
func TestErrorsOfTheDaemonReachTheRuntime(t *testing.T) {
	t.Parallel()
	h := programtest.NewHost(t)
	d := newDaemon(t, func(m wire.Request) (int, string) {
		return 500, `{"code":107,"msg":"no free device","details":"x"}`
	})
	away := socketDir(t)
	for _, tt := range []struct {
		name, command, stdin string
		code                 uint
	}{
		{"of the daemon", "ADD", conf("1.0.0", d.dir, ""), 107},
		{"of the daemon", "DEL", conf("1.0.0", d.dir, ""), 107},
		{"away", "STATUS", conf("1.1.0", away, ""), 50},
		{"away, fail", "DEL", conf("1.0.0", away, `,"delPolicy":"fail"`), 11},
		{"unknown policy", "DEL", conf("1.0.0", d.dir, `,"delPolicy":"drop"`), 7},
		{"unknown policy", "ADD", conf("1.0.0", d.dir, `,"queuePolicy":"drop"`), 7},
		{"two policies", "DEL", conf("1.0.0", d.dir, `,"delPolicy":"exec","queuePolicy":"fail"`), 7},
		{"policy of the wrong type", "ADD", conf("1.0.0", d.dir, `,"delPolicy":5`), 6},
		{"relative directory", "ADD", conf("1.0.0", "run", ""), 7},
		{"no daemon reads the queue", "DEL", conf("1.0.0", away, fmt.Sprintf(`,"delQueueDir":%q,"delQueueWait":"0s"`, h.Dir+"/unread")), 11},
		{"wait that is none", "DEL", conf("1.0.0", d.dir, `,"delQueueWait":"2"`), 7},
		{"wait that is none", "ADD", conf("1.0.0", d.dir, `,"delQueueWait":"-1s"`), 7},
		{"relative queue", "DEL", conf("1.0.0", d.dir, `,"delQueueDir":"queue"`), 7},
		{"runtime's directory", "DEL", conf("1.0.0", d.dir, `,"delQueueDir":"/var/lib/cni"`), 7},
		{"not JSON", "ADD", "{", 6},
		{"unknown version", "ADD", conf("9.0.0", d.dir, ""), 1},
		{"unknown command", "JUMP", conf("1.0.0", d.dir, ""), 4},
	} {
		t.Run(tt.name+" "+tt.command, func(t *testing.T) {
			stdout, stderr, code := h.Run(tt.command, tt.stdin)
			said := h.Said(stdout)
			if code != 1 || said.Code != tt.code || said.Msg == "" || stderr != "" {
				t.Errorf("status %d, %+v, %s; want code %d", code, said, stderr, tt.code)
			}
			if strings.Contains(string(stdout), "hunter2") {
				t.Errorf("printed %s", stdout)
			}
		})
	}
	if got := d.commands(); !slices.Equal(got, []string{"ADD", "DEL"}) {
		t.Errorf("the daemon was asked for %q", got)
	}
}

// mark has a daemon read the queue, and go away.
func mark(t *testing.T, queue string) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(socketDir(t), "s"))
	nodetest.OK(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := &thick.Server{Queue: queue}
	nodetest.OK(t, s.Serve(ctx, l))
}

// A DEL that finds no daemon is done from the records.
func TestDelWithoutADaemonIsDone(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{`,"delPolicy":"exec"`, ""} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			a := newAttached(t, policy)
			for range 2 {
				if stdout, stderr, code := a.Run("DEL", a.conf); code != 0 || len(stdout) > 0 {
					t.Errorf("status %d, %s, %s", code, stdout, stderr)
				}
			}
			if got := a.Calls(); !slices.Equal(got, []string{"DEL eth0"}) {
				t.Errorf("calls %q", got)
			}
			nodetest.Equal(t, "left", a.Files("state"), nil)
			if all := a.queued(); len(all) > 0 {
				t.Errorf("queued %q", all)
			}
		})
	}
}

// A DEL without a daemon has the privileges that the daemon's configuration gives to plugins.
func TestPrivilegesWithoutADaemon(t *testing.T) {
	t.Parallel()
	a := newAttached(t, `,"delPolicy":"exec","delegatePrivileges":"noNew"`, `,"on":{"DEL":"privileges"}`)
	if stdout, stderr, code := a.Run("DEL", a.conf); code != 0 {
		t.Errorf("status %d, %s, %s", code, stdout, stderr)
	}
	nodetest.Equal(t, "calls", a.Calls(), []string{"DEL eth0 noNew"})
}

// What the shim cannot do without the daemon is on disk for the next one, and nothing else
// is: never a success that did nothing.
func TestDelThatNeedsTheDaemonIsQueued(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(a *attached) error
		policy string
		code   uint // 0 is success
		calls  []string
	}{
		"policy queue":    {func(*attached) error { return nil }, `,"queuePolicy":"queue"`, 0, nil},
		"resident plugin": {func(a *attached) error { return a.write(multinet.ResidentState(a.State), "fake", "{}") }, "", 0, nil},
		"missing plugin":  {func(a *attached) error { return os.Remove(filepath.Join(a.Dir, "bin", "fake")) }, "", 0, nil},
		"missing records": {func(a *attached) error { return os.Rename(a.State, a.State+".away") }, "", 0, nil},
		"unusable records": {func(a *attached) error {
			return errors.Join(os.Rename(a.State, a.State+".away"), os.WriteFile(a.State, nil, 0o600))
		}, "", 0, nil},
		"damaged record": {func(a *attached) error {
			for _, f := range a.Files("state") {
				if strings.HasSuffix(f, ".json") {
					return a.write(a.State, f, "x\n")
				}
			}
			return errors.New("no record")
		}, "", 5, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttached(t, tt.policy)
			nodetest.OK(t, tt.change(a))
			stdout, stderr, code := a.Run("DEL", a.conf)
			if want := min(int(tt.code), 1); code != want {
				t.Errorf("status %d, want %d: %s, %s", code, want, stdout, stderr)
			}
			if tt.code > 0 {
				if said := a.Said(stdout); said.Code != tt.code {
					t.Errorf("code %d, want %d", said.Code, tt.code)
				}
			}
			all := a.queued()
			if (len(all) == 1) != (tt.code == 0) {
				t.Errorf("queued %q", all)
			}
			for _, name := range all {
				data, err := os.ReadFile(filepath.Join(a.queue, name))
				if err != nil || !strings.Contains(string(data), `"CNI_CONTAINERID":"c1"`) {
					t.Errorf("queued %s, %v", data, err)
				}
			}
			if got := a.Calls(); !slices.Equal(got, tt.calls) {
				t.Errorf("calls %q, want %q", got, tt.calls)
			}
		})
	}
}

// An attached is a container that a daemon has attached, which is away now.
type attached struct {
	*programtest.Host

	t     *testing.T
	queue string
	conf  string
}

func newAttached(t *testing.T, policy string, fake ...string) *attached {
	t.Helper()
	h := programtest.NewHost(t)
	a := &attached{Host: h, t: t, queue: filepath.Join(h.Dir, "queue")}
	mark(t, a.queue)
	a.conf = conf("1.0.0", socketDir(t), fmt.Sprintf(`%s,"delQueueDir":%q,"delQueueWait":"1ms","cniDir":%q,"delegates":[{"type":"fake","dir":%q%s}]`,
		policy, a.queue, h.State, h.Dir, strings.Join(fake, "")))
	exec := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"fake": delegatetest.Result(nil)}}
	err := multinet.New(multinet.Cluster{}).Do(t.Context(), plugin.Process{
		Exec: exec, Stdout: io.Discard,
		InterfaceNames: func(string) ([]string, error) { return nil, nil },
	}, delegate.CommandAdd, skel.CmdArgs{ContainerID: "c1", IfName: "eth0", Netns: h.NetNS, StdinData: []byte(a.conf)})
	nodetest.OK(t, err)
	return a
}

// queued returns the DELs in the queue.
func (a *attached) queued() []string {
	return slices.DeleteFunc(a.Files("queue"), func(name string) bool { return name == ".reader" })
}

func (a *attached) write(dir, name, text string) error {
	return errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
}

// Somebody who runs the shim by hand learns what it is for.
func TestHelpSaysWhatTheShimIsFor(t *testing.T) {
	t.Parallel()
	cmd := programtest.NewHost(t).Command("", "")
	cmd.Args = append(cmd.Args, "--help")
	if out, err := cmd.Output(); err != nil || !strings.HasPrefix(string(out), "usage: multinet-shim") || !strings.Contains(string(out), "multinetd") {
		t.Errorf("%v: %s", err, out)
	}
}
