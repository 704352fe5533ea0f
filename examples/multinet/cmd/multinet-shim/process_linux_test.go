package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/internal/programtest"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// The tests here run the shim as the process that a runtime starts. The daemon
// is a stand-in; the real one is tested with the shim in package daemon.

func TestMain(m *testing.M) { programtest.Main(m, "multinet-shim", main) }

// A daemon answers with what a test wants.
type daemon struct {
	dir      string // of its socket
	commands nodetest.Notes[string]
}

func newDaemon(t *testing.T, status int, answer func(command string) string) *daemon {
	t.Helper()
	d := &daemon{dir: nodetest.ShortDir(t)}
	l, err := net.Listen("unix", filepath.Join(d.dir, multinet.SocketName))
	nodetest.OK(t, err)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m wire.Request
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			panic(err)
		}
		d.commands.Note(m.Env["CNI_COMMAND"])
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer(m.Env["CNI_COMMAND"]))
	})}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return d
}

func conf(version, socketDir, more string) string {
	return fmt.Sprintf(`{"cniVersion":%q,"name":"multi","type":"multinet-shim","daemonSocketDir":%q,"password":"hunter2hunter2"%s}`, version, socketDir, more)
}

const result = `{"Result":{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.2/24"}]}}`

// Every command is handed on, and the result of the daemon is printed.
func TestCommandsArePassedOn(t *testing.T) {
	t.Parallel()
	h := programtest.NewHost(t)
	d := newDaemon(t, 200, func(command string) string { return map[string]string{"ADD": result}[command] })
	commands := []string{"ADD", "CHECK", "STATUS", "GC", "DEL"}
	for _, command := range commands {
		stdout, stderr, code := h.Run(command, conf("1.1.0", d.dir, ""))
		if code != 0 || stderr != "" || strings.Contains(string(stdout), "10.9.0.2") != (command == "ADD") || command != "ADD" && len(stdout) > 0 {
			t.Errorf("%s: status %d, %s, %q", command, code, stdout, stderr)
		}
	}
	nodetest.Equal(t, "commands", d.commands.Taken(), commands)
}

// What the daemon says of an error is said to the runtime, with its code and
// in the version of the configuration.
func TestErrorsOfTheDaemonReachTheRuntime(t *testing.T) {
	t.Parallel()
	h := programtest.NewHost(t)
	d := newDaemon(t, 500, func(string) string { return `{"code":107,"msg":"no free device","details":"x"}` })
	away := nodetest.ShortDir(t)
	for _, tt := range []struct {
		name, command, stdin string
		code                 uint
	}{
		{"of the daemon", "ADD", conf("1.0.0", d.dir, ""), 107},
		{"of the daemon", "DEL", conf("1.0.0", d.dir, ""), 107},
		{"away", "STATUS", conf("1.1.0", away, ""), 50},
		{"away, fail", "DEL", conf("1.0.0", away, `,"delPolicy":"fail"`), 11},
		{"unknown policy", "DEL", conf("1.0.0", d.dir, `,"delPolicy":"drop"`), 7},
		{"two policies", "DEL", conf("1.0.0", d.dir, `,"delPolicy":"exec","queuePolicy":"fail"`), 7},
		{"policy of the wrong type", "ADD", conf("1.0.0", d.dir, `,"delPolicy":5`), 6},
		{"relative directory", "ADD", conf("1.0.0", "run", ""), 7},
		{"no daemon reads the queue", "DEL", conf("1.0.0", away, fmt.Sprintf(`,"delQueueDir":%q,"delQueueWait":"0s"`, h.Dir+"/unread")), 11},
		{"wait that is none", "DEL", conf("1.0.0", d.dir, `,"delQueueWait":"2"`), 7},
		{"relative queue", "DEL", conf("1.0.0", d.dir, `,"delQueueDir":"queue"`), 7},
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
			nodetest.Lacks(t, "printed", string(stdout), "hunter2")
		})
	}
	nodetest.Equal(t, "asked of the daemon", d.commands.Taken(), []string{"ADD", "DEL"})
}

// mark has a daemon read the queue, and go away.
func mark(t *testing.T, queue string) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(nodetest.ShortDir(t), "s"))
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
			nodetest.Equal(t, "calls", a.Calls(), []string{"DEL eth0"})
			nodetest.Equal(t, "left", a.Files("state"), nil)
			nodetest.Equal(t, "queued", a.queued(), nil)
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
	away := func(a *attached) { nodetest.OK(a, os.Rename(a.State, a.State+".away")) }
	for name, tt := range map[string]struct {
		change func(a *attached)
		policy string
		code   uint // 0 is success
	}{
		"policy queue":     {func(*attached) {}, `,"queuePolicy":"queue"`, 0},
		"resident plugin":  {func(a *attached) { a.Write("state.relay/fake", "{}") }, "", 0},
		"missing plugin":   {func(a *attached) { nodetest.OK(a, os.Remove(a.Path("bin/fake"))) }, "", 0},
		"missing records":  {away, "", 0},
		"unusable records": {func(a *attached) { away(a); a.Write("state", "") }, "", 0},
		"damaged record":   {func(a *attached) { a.Write("state/c1@multi@eth0.json", "x\n") }, "", 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttached(t, tt.policy)
			tt.change(a)
			stdout, stderr, code := a.Run("DEL", a.conf)
			if want := min(int(tt.code), 1); code != want {
				t.Errorf("status %d, want %d: %s, %s", code, want, stdout, stderr)
			}
			if tt.code > 0 {
				nodetest.Equal(t, "code", a.Said(stdout).Code, tt.code)
			}
			nodetest.Equal(t, "it is queued", len(a.queued()) == 1, tt.code == 0)
			for _, name := range a.queued() {
				nodetest.Contains(t, "queued", a.Read("queue/"+name), `"CNI_CONTAINERID":"c1"`)
			}
			nodetest.Equal(t, "calls", a.Calls(), nil)
		})
	}
}

// An attached is a container that a daemon has attached, which is away now.
type attached struct {
	*programtest.Host

	conf string
}

func newAttached(t *testing.T, policy string, fake ...string) *attached {
	t.Helper()
	h := programtest.NewHost(t)
	mark(t, h.Path("queue"))
	a := &attached{h, conf("1.0.0", nodetest.ShortDir(t), fmt.Sprintf(`%s,"delQueueDir":%q,"delQueueWait":"1ms","cniDir":%q,"delegates":[{"type":"fake","dir":%q%s}]`,
		policy, h.Path("queue"), h.State, h.Dir, strings.Join(fake, "")))}
	exec := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"fake": delegatetest.Result(nil)}}
	err := multinet.New(multinet.Cluster{}).Do(t.Context(), plugin.System{
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

// Somebody who runs the shim by hand learns what it is for.
func TestHelpSaysWhatTheShimIsFor(t *testing.T) {
	t.Parallel()
	cmd := programtest.NewHost(t).Command("", "")
	cmd.Args = append(cmd.Args, "--help")
	if out, err := cmd.Output(); err != nil || !strings.HasPrefix(string(out), "usage: multinet-shim") || !strings.Contains(string(out), "multinetd") {
		t.Errorf("%v: %s", err, out)
	}
}
