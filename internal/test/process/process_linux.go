package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// A Process is killed when this process ends, however it ends.
type Process struct {
	Cmd  *exec.Cmd
	Done chan struct{} // is closed when the process has ended

	log string
}

// Start starts a command, whose output goes to the end of the file log. Each of confine
// first changes the thread from which the process inherits its rights, and which ends with
// the process.
func Start(log string, cmd *exec.Cmd, confine ...func() error) (*Process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	p := &Process{Cmd: cmd, log: log, Done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = file, file
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the signal comes at the end of this thread
		defer close(p.Done)
		var err error
		for _, change := range confine {
			err = errors.Join(err, change())
		}
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	return p, <-started
}

// Kill ends the process and waits for its end. A nil process has ended.
func (p *Process) Kill() {
	if p != nil && p.Cmd.Process != nil {
		_ = p.Cmd.Process.Kill()
		<-p.Done
	}
}

// Signal sends a signal to the process.
func (p *Process) Signal(sig os.Signal) error { return p.Cmd.Process.Signal(sig) }

// Over reports whether the process has ended.
func (p *Process) Over() bool {
	select {
	case <-p.Done:
		return true
	default:
		return false
	}
}

// Log returns what the process has printed.
func (p *Process) Log() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// LastLines returns the end of what the process has printed.
func (p *Process) LastLines() string {
	lines := strings.SplitAfter(p.Log(), "\n")
	return fmt.Sprintf("%s:\n%s", filepath.Base(p.log), strings.Join(lines[max(0, len(lines)-20):], ""))
}

// Serve starts a daemon (see [Start]), which is killed at the end of the test. A panic in its log
// fails the test. A test that fails shows the end of the last log.
func (n *Node) Serve(log string, cmd *exec.Cmd, confine ...func() error) *Process {
	n.Helper()
	p, err := Start(log, cmd, confine...)
	nodetest.OK(n, err)
	n.Cleanup(func() {
		p.Kill()
		if panicked(p.Log()) {
			n.Errorf("the daemon's log tells of a panic:\n%s", p.Log())
		}
		if n.Failed() && !n.shown {
			n.shown = true
			n.Log(p.LastLines())
		}
	})
	return p
}

// Answers reports whether the daemon at a socket answers a request for path with 200.
func (n *Node) Answers(socket, path string) bool {
	r, err := Ask(n.Context(), socket, http.MethodGet, path, nil)
	return err == nil && r.Status == http.StatusOK
}

// Await waits until a daemon answers a request for path with 200. It must not end before.
func (n *Node) Await(p *Process, socket, path string) {
	n.Helper()
	n.Until("the daemon answers "+path, func() bool {
		if p.Over() {
			n.Fatalf("the daemon has ended: %v\n%s", p.Cmd.ProcessState, p.LastLines())
		}
		return n.Answers(socket, path)
	})
}

// panicked reports whether the log of a Go program tells of a panic or a data race.
func panicked(log string) bool {
	for _, word := range []string{"panic: ", `"msg":"panic"`, "fatal error: ", "DATA RACE"} {
		if strings.Contains(log, word) {
			return true
		}
	}
	return false
}

// Env is the environment of a command for p, as containerd gives it to a plugin.
func (n *Node) Env(command string, p *Pod) map[string]string {
	env := map[string]string{"CNI_COMMAND": command, "CNI_PATH": n.Bin, "PATH": Path}
	if command != "GC" && command != "STATUS" && command != "VERSION" {
		args := []string{
			"IgnoreUnknown=1", "K8S_POD_NAMESPACE=" + p.Namespace, "K8S_POD_NAME=" + p.Name,
			"K8S_POD_INFRA_CONTAINER_ID=" + p.ID, "K8S_POD_UID=" + p.UID,
		}
		rand.Shuffle(len(args), func(i, j int) { args[i], args[j] = args[j], args[i] })
		maps.Copy(env, map[string]string{
			"CNI_ARGS": strings.Join(args, ";"), "CNI_CONTAINERID": p.ID, "CNI_NETNS": p.NetNS, "CNI_IFNAME": p.IfName,
		})
	}
	return env
}

// A Command is a program that has been started and has received its input.
type Command struct {
	Cmd            *exec.Cmd
	begun          time.Time
	stdout, stderr *os.File // not pipes: an orphan would keep them open
}

// An Answer is what a program returned.
type Answer struct {
	Code   int // exit status; -1 if it was killed
	Stdout []byte
	Stderr string
	Took   time.Duration
	Err    *types.Error // the error object on stdout, if [Node.Wait] has found one
}

// Exec starts an executable with exactly env and stdin. One that runs for five minutes hangs, and is
// killed.
func (n *Node) Exec(path string, env map[string]string, stdin []byte, args ...string) *Command {
	n.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.Context()), 5*time.Minute)
	n.Cleanup(cancel)
	c := &Command{Cmd: exec.CommandContext(ctx, path, args...), begun: time.Now(), stdout: memory(n), stderr: memory(n)}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		c.Cmd.Env = append(c.Cmd.Env, k+"="+env[k])
	}
	c.Cmd.Stdin, c.Cmd.Stdout, c.Cmd.Stderr = bytes.NewReader(stdin), c.stdout, c.stderr
	start := c.Cmd.Start
	if n.Begin != nil {
		start = func() error { return n.Begin(c.Cmd) }
	}
	nodetest.OK(n, start())
	return c
}

// memory returns a file without a name. It is closed when nobody has it any longer.
func memory(tb testing.TB) *os.File {
	tb.Helper()
	fd, err := unix.MemfdCreate("output", unix.MFD_CLOEXEC)
	nodetest.OK(tb, err)
	return os.NewFile(uintptr(fd), "output")
}

// head returns the first megabyte of a file that may still be written.
func head(f *os.File) []byte {
	text, _ := io.ReadAll(io.NewSectionReader(f, 0, 1<<20))
	return text
}

// Wait waits until the program ends, and returns its answer.
func (c *Command) Wait() Answer {
	_ = c.Cmd.Wait() // see ProcessState
	return Answer{Code: c.Cmd.ProcessState.ExitCode(), Stdout: head(c.stdout), Stderr: string(head(c.stderr)), Took: time.Since(c.begun)}
}

// Kill kills the program, but not the programs that it runs.
func (c *Command) Kill() {
	_ = c.Cmd.Process.Kill()
	_ = c.Cmd.Wait()
}

// Wait returns the answer of a plugin. It fails the test unless stdout is what the specification
// asks for: one JSON object, or nothing.
func (n *Node) Wait(c *Command) Answer {
	n.Helper()
	a := c.Wait()
	if panicked(a.Stderr) {
		n.Fatalf("%s: %s", c.Cmd.Path, a.Stderr)
	}
	switch {
	case a.Code > 0:
		a.Err = &types.Error{}
		if err := json.Unmarshal(a.Stdout, a.Err); err != nil {
			n.Fatalf("exit status %d, and stdout is no error: %v: %q (stderr %q)", a.Code, err, a.Stdout, a.Stderr)
		}
		if a.Err.Code == 0 {
			n.Errorf("an error without a code: %s", a.Stdout)
		}
	case a.Code == 0 && len(bytes.TrimSpace(a.Stdout)) > 0:
		if err := json.Unmarshal(a.Stdout, &Object{}); err != nil {
			n.Fatalf("stdout: %v: %q", err, a.Stdout)
		}
	}
	return a
}

// A Reply is the answer of a daemon to a request.
type Reply struct {
	Status int
	Header http.Header
	Body   []byte
}

// Ask sends a request to a daemon and returns its reply.
func Ask(ctx context.Context, socket, method, path string, body []byte) (Reply, error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	r, err := http.NewRequestWithContext(ctx, method, "http://daemon"+path, bytes.NewReader(body))
	if err != nil {
		return Reply{}, err
	}
	a, err := transport.RoundTrip(r)
	if err != nil {
		return Reply{}, err
	}
	defer func() { _ = a.Body.Close() }()
	text, err := io.ReadAll(a.Body)
	return Reply{a.StatusCode, a.Header, text}, err
}
