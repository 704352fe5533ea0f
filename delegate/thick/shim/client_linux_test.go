package shim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/nodetest"
)

// Where the process of a test finds the daemon, and its queue.
const (
	socketVar = "SHIM_TEST_SOCKET"
	queueVar  = "SHIM_TEST_QUEUE"
)

// TestMain is a shim's main in the processes that tests start.
func TestMain(m *testing.M) {
	if os.Getenv(socketVar) == "" {
		os.Exit(m.Run())
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c := &Client{Socket: os.Getenv(socketVar), Env: os.Environ(), Stdout: os.Stdout, Queue: os.Getenv(queueVar), QueueWait: -1}
	if e := skel.PluginMainFuncsWithError(funcs(ctx, c), version.All, "a shim"); e != nil {
		_ = e.Print()
		os.Exit(1)
	}
	os.Exit(0)
}

// process is a shim for command.
func process(t *testing.T, socket, command string) (cmd *exec.Cmd, stdout *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	nodetest.OK(t, err)
	cmd = exec.CommandContext(t.Context(), self)
	cmd.Env = []string{
		socketVar + "=" + socket, queueVar + "=" + filepath.Join(filepath.Dir(socket), "q"), "TOKEN=secret",
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=c1", "CNI_NETNS=/run/netns/c1", "CNI_IFNAME=eth0", "CNI_PATH=/bin",
	}
	cmd.Stdin = strings.NewReader(testConfig)
	stdout = new(bytes.Buffer)
	cmd.Stdout = stdout
	return cmd, stdout
}

// printed is the error object that a shim has printed.
func printed(t *testing.T, out []byte) types.Error {
	t.Helper()
	var e types.Error
	if err := json.Unmarshal(out, &e); err != nil {
		t.Fatalf("%v: %q", err, out)
	}
	return e
}

// What the runtime sees of the executable.
func TestWhatTheRuntimeSeesOfTheProcess(t *testing.T) {
	t.Parallel()
	said := types.Error{Code: 107, Msg: "own", Details: "and why"}
	socket := newHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		if commandOf(r) == "ADD" {
			_, _ = io.WriteString(w, testResult)
			return
		}
		w.WriteHeader(http.StatusInternalServerError)
		_ = json.NewEncoder(w).Encode(said)
	})
	cmd, out := process(t, socket, "ADD")
	if err := cmd.Run(); err != nil || !strings.Contains(out.String(), "eth0") {
		t.Errorf("%v: %s", err, out)
	}
	for _, command := range []string{"CHECK", "DEL", "GC", "STATUS"} {
		cmd, out := process(t, socket, command)
		if err := cmd.Run(); err == nil {
			t.Errorf("%s: exit status 0", command)
		}
		if diff := cmp.Diff(said, printed(t, out.Bytes())); diff != "" {
			t.Error(command, diff)
		}
	}
	away := filepath.Join(filepath.Dir(newQueue(t)), "s")
	cmd, out = process(t, away, "DEL")
	if err := cmd.Run(); err != nil || out.Len() > 0 {
		t.Errorf("%v: %s", err, out)
	}
	if all := queued(t, filepath.Join(filepath.Dir(away), "q")); len(all) != 1 {
		t.Errorf("queued %v", all)
	}
	cmd, out = process(t, away, "STATUS")
	if err := cmd.Run(); err == nil || printed(t, out.Bytes()).Code != 50 {
		t.Errorf("%v: %s", err, out)
	}
}

// A shim that is asked to stop tells the daemon, and prints what that undid.
func TestProcessIsAskedToStop(t *testing.T) {
	t.Parallel()
	came := make(chan struct{})
	socket := newHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		commandOf(r)
		close(came)
		<-r.Context().Done()
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, `{"code":11,"msg":"undone"}`)
	})
	cmd, out := process(t, socket, "ADD")
	nodetest.OK(t, cmd.Start())
	<-came
	nodetest.OK(t, cmd.Process.Signal(syscall.SIGTERM))
	if err := cmd.Wait(); err == nil {
		t.Error("exit status 0")
	}
	nodetest.Equal(t, "got", printed(t, out.Bytes()), types.Error{Code: 11, Msg: "undone"})
}

// Nobody reads the result, so the shim has the attachment undone.
func TestResultThatNobodyReadsIsUndone(t *testing.T) {
	t.Parallel()
	var got nodetest.Notes[string]
	socket := newHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		command := commandOf(r)
		got.Note(command)
		if command == "ADD" {
			_, _ = io.WriteString(w, testResult)
		}
	})
	cmd, _ := process(t, socket, "ADD")
	r, w, err := os.Pipe()
	nodetest.OK(t, err)
	cmd.Stdout = w
	_ = r.Close()
	if err := cmd.Run(); err == nil {
		t.Error("exit status 0")
	}
	_ = w.Close()
	nodetest.Equal(t, "got", got.Taken(), []string{"ADD", "DEL"})
}

// A plugin writes down what it did.
type plugin struct {
	add func(context.Context) error
	did nodetest.Notes[string]
}

func (p *plugin) note(command string, a *skel.CmdArgs) error {
	p.did.Note(strings.TrimSpace(command + " " + a.ContainerID))
	return nil
}

func (p *plugin) Add(ctx context.Context, a *skel.CmdArgs) (types.Result, error) {
	_ = p.note("ADD", a)
	if p.add != nil {
		if err := p.add(ctx); err != nil {
			return nil, err
		}
	}
	return &types100.Result{CNIVersion: "1.1.0", Interfaces: []*types100.Interface{{Name: a.IfName, Sandbox: a.Netns}}}, nil
}

func (p *plugin) Del(_ context.Context, a *skel.CmdArgs) error   { return p.note("DEL", a) }
func (p *plugin) Check(_ context.Context, a *skel.CmdArgs) error { return p.note("CHECK", a) }
func (p *plugin) GC(_ context.Context, a *skel.CmdArgs) error {
	return errors.Join(p.note("GC", a), types.NewError(107, "own", "details"))
}

func (p *plugin) Status(context.Context, *skel.CmdArgs) error {
	return types.NewError(51, "limited", "")
}

func (p *plugin) commands() thick.Commands {
	return thick.Commands{Add: p.Add, Check: p.Check, Del: p.Del, GC: p.GC, Status: p.Status}
}

// serve runs a server until the end of the test.
func serve(t *testing.T, s *thick.Server, socket string) {
	t.Helper()
	l, err := thick.Listen(t.Context(), nil, socket)
	nodetest.OK(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A DEL that found no server is done by the next one, and what the server says
// comes through.
func TestWithServer(t *testing.T) {
	t.Parallel()
	out := new(strings.Builder)
	c := &Client{Socket: filepath.Join(nodetest.ShortDir(t), "s"), Queue: newQueue(t), QueueWait: -1, Stdout: out}
	gone := args()
	gone.ContainerID = "gone"
	nodetest.OK(t, c.Execute(t.Context(), "DEL", gone))
	added := make(chan error, 1)
	go func() { added <- c.Execute(t.Context(), "ADD", args()) }()
	p := new(plugin)
	serve(t, &thick.Server{Commands: p.commands(), Queue: c.Queue, Version: "v1"}, c.Socket)
	if err := <-added; err != nil || !strings.Contains(out.String(), `"sandbox": "/run/netns/c1"`) {
		t.Errorf("%v: %s", err, out)
	}
	if err := c.Execute(t.Context(), "CHECK", args()); err != nil {
		t.Error(err)
	}
	for code, err := range map[uint]error{107: c.Execute(t.Context(), "GC", args()), 51: c.Execute(t.Context(), "STATUS", args())} {
		wantError(t, err, code)
	}
	if err := c.Execute(t.Context(), "DEL", args()); err != nil {
		t.Error(err)
	}
	_, err := c.Do(t.Context(), "ADD", args(), &wire.Attributes{})
	wantError(t, err, 999) // it does not plug
	nodetest.Until(t, "the queue is empty", func() bool { return len(queued(t, c.Queue)) == 0 })
	var got []string
	detached := 0
	for _, did := range p.did.Taken() {
		if did == "DEL gone" { // beside the others
			detached++
			continue
		}
		did, _, _ = strings.Cut(did, " c1")
		got = append(got, did)
	}
	if diff := cmp.Diff([]string{"ADD", "CHECK", "GC", "DEL"}, got); diff != "" || detached != 1 {
		t.Error(detached, diff)
	}
}

// A shim that is asked to stop has the server's ADD end and undone.
func TestWithServerStop(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	p := &plugin{add: func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		return context.Cause(ctx)
	}}
	socket := filepath.Join(nodetest.ShortDir(t), "s")
	serve(t, &thick.Server{Commands: p.commands()}, socket)
	_, err := (&Client{Socket: socket, UndoTimeout: time.Minute}).Do(ctx, "ADD", args(), nil)
	wantError(t, err, 11)
	var said *types.Error
	if !errors.As(err, &said) {
		t.Errorf("%v: not the server's", err)
	}
	nodetest.Equal(t, "got", p.did.Taken(), []string{"ADD c1"})
}
