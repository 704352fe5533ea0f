package lifecycle

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

// A role is what this test's binary does as another process.
type role struct {
	Dir  string
	Verb string // "ADD", "DEL", "ATTACH" or "RECONCILE" of eth0, "GC" of all, or "GC of none"

	KillAt string // dies at the calls that begin so
	HoldAt string // says so, and waits for the end of its stdin
	FailAt string // fails there, with code 101
	Limit  uint64 // of the size of files, if not 0
	Alone  string // the file that is there while a plugin runs, if not empty

	// Plugins, when not empty, is a directory with real ones, which are run
	// with Env, in place of the fakes.
	Plugins string
	Env     []string
}

// An outcome is what a role prints at last.
type outcome struct {
	Code  uint
	Err   string
	Trace []string
}

const (
	roleEnv = "LIFECYCLE_TEST_ROLE"

	// With -race a process sleeps before it exits, unless told not to.
	noRaceSleep = "GORACE=atexit_sleep_ms=0"
)

func TestMain(m *testing.M) {
	if s := os.Getenv(roleEnv); s != "" {
		var r role
		err := json.Unmarshal([]byte(s), &r)
		if err == nil {
			err = r.play()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func (r role) play() error {
	x := &delegatetest.Exec{Plugins: plugins()}
	n := &node{Manager: &Manager{Invoker: &delegate.Invoker{Exec: x}, Dir: r.Dir}, Node: &nodetest.Node{Exec: x}, Dir: r.Dir}
	if r.Plugins != "" {
		n.Invoker = &delegate.Invoker{Exec: &delegate.Process{Stderr: os.Stderr}, Path: []string{r.Plugins}, Env: r.Env}
	}
	if r.KillAt != "" {
		n.On(r.KillAt, func(context.Context, delegatetest.Call) error {
			return errors.Join(syscall.Kill(os.Getpid(), syscall.SIGKILL), errors.New("still alive"))
		})
	}
	if r.HoldAt != "" {
		n.On(r.HoldAt, func(context.Context, delegatetest.Call) error {
			fmt.Println("held")
			_, err := io.Copy(io.Discard, os.Stdin)
			return err
		})
	}
	if r.FailAt != "" {
		n.On(r.FailAt, func(context.Context, delegatetest.Call) error { return types.NewError(101, "no", "") })
	}
	if r.Alone != "" {
		n.alone(r.Alone)
	}
	if r.Limit > 0 {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: r.Limit, Max: r.Limit}); err != nil {
			return err
		}
	}
	err := n.verb(context.Background(), r.Verb)
	out := outcome{Code: status.Code(err), Trace: x.Trace()}
	if err != nil {
		out.Err = err.Error()
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

// alone makes plugins fail that run while another does, in any process that
// says so by the same file.
func (n *node) alone(file string) {
	for name, p := range n.Exec.Plugins {
		n.Exec.Plugins[name] = func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
			if err := os.Mkdir(file, 0o700); err != nil {
				return nil, types.NewError(199, "not alone", err.Error())
			}
			out, err := p(ctx, c)
			return out, errors.Join(err, os.Remove(file))
		}
	}
}

func (n *node) verb(ctx context.Context, verb string) (err error) {
	switch verb {
	case "ADD":
		_, err = n.Add(ctx, eth0, pair(eth0))
	case "ATTACH":
		_, err = n.Attach(ctx, eth0, hotplug(eth0))
	case "DEL":
		err = n.Del(ctx, Removal{Key: eth0})
	case "RECONCILE":
		_, err = n.Reconcile(ctx, eth0, keep("ipvlan@hot1"))
	case "GC":
		err = n.GC(ctx, Collection{Network: "multi", Valid: noneValid, Networks: []netconf.Network{}})
	case "GC of none":
		err = n.GC(ctx, Collection{Network: "multi", Valid: validFor(eth0)})
	default:
		err = fmt.Errorf("no verb %q", verb)
	}
	return err
}

// A process plays a role.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	stdin  io.Closer
	stdout *bufio.Reader
	stderr bytes.Buffer
}

func start(tb testing.TB, r role) *process {
	tb.Helper()
	spec, err := json.Marshal(r)
	nodetest.OK(tb, err)
	p := &process{t: tb, cmd: exec.CommandContext(tb.Context(), "/proc/self/exe")}
	p.cmd.Env = append(os.Environ(), noRaceSleep, roleEnv+"="+string(spec))
	p.cmd.Stderr = &p.stderr
	stdin, err := p.cmd.StdinPipe()
	nodetest.OK(tb, err)
	stdout, err := p.cmd.StdoutPipe()
	nodetest.OK(tb, err)
	nodetest.OK(tb, p.cmd.Start())
	p.stdin, p.stdout = stdin, bufio.NewReader(stdout)
	return p
}

// held waits until the process is at its HoldAt.
func (p *process) held() {
	p.t.Helper()
	line, err := p.stdout.ReadString('\n')
	if line != "held\n" {
		p.t.Fatalf("not held: %q, %v, %s", line, err, &p.stderr)
	}
}

// end lets the process go on, and returns what came of it.
func (p *process) end() outcome {
	p.t.Helper()
	err := p.stdin.Close()
	var out outcome
	err = errors.Join(err, json.NewDecoder(p.stdout).Decode(&out), p.cmd.Wait())
	if err != nil {
		p.t.Fatalf("%v: %s", err, &p.stderr)
	}
	return out
}

// died waits for a process that is killed.
func (p *process) died() {
	p.t.Helper()
	if err := p.cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		p.t.Fatalf("%v: %s", err, &p.stderr)
	}
}
