package lifecycle

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/records"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/status"
)

// script is a plugin. As the bridge it says that it runs the command AT, and waits, in
// a child of its own, to be told to go on.
const script = `#!/bin/sh
cat >/dev/null
case "$CNI_COMMAND $0" in
"$AT "*/bridge)
	echo $$ >"$RUNNING"
	cat "$GO" >/dev/null
esac
echo '{"cniVersion":"1.1.0"}'
`

// A real is a role with a real plugin that runs.
type real struct {
	*process
	pid int // the plugin's
}

func startReal(t *testing.T, n *node, verb string) *real {
	t.Helper()
	at, _, _ := strings.Cut(verb, " ")
	dir := t.TempDir()
	r, running, goOn := &real{}, filepath.Join(dir, "running"), filepath.Join(dir, "go")
	nodetest.OK(t, errors.Join(syscall.Mkfifo(running, 0o600), syscall.Mkfifo(goOn, 0o600)))
	for _, p := range []string{"bridge", "tuning", "macvlan"} {
		nodetest.OK(t, os.WriteFile(filepath.Join(dir, p), []byte(script), 0o700))
	}
	says, err := os.OpenFile(running, os.O_RDWR, 0)
	nodetest.OK(t, err)
	defer says.Close()
	nodetest.OK(t, says.SetReadDeadline(time.Now().Add(2*time.Minute)))
	r.process = start(t, role{
		Dir: n.Dir, Verb: verb, Plugins: dir,
		Env: []string{"PATH=" + os.Getenv("PATH"), "AT=" + at, "RUNNING=" + running, "GO=" + goOn},
	})
	buf := make([]byte, 32)
	got, err := says.Read(buf)
	if n, _ := fmt.Sscan(string(buf[:got]), &r.pid); err != nil || n < 1 {
		t.Fatalf("the plugin does not run: %v, %q: %s", err, buf[:got], &r.stderr)
	}
	t.Cleanup(func() {
		if !nodetest.Ended(r.pid, "") {
			_ = syscall.Kill(-r.pid, syscall.SIGKILL)
		}
	})
	return r
}

// orphan kills the role, whose plugin goes on, and makes plugins of n fail that run beside it.
func (r *real) orphan(t *testing.T, n *node) {
	t.Helper()
	nodetest.OK(t, r.cmd.Process.Kill())
	r.died()
	r.wantAlive(t)
	n.On("", func(context.Context, delegatetest.Invocation) error {
		if !nodetest.Ended(r.pid, "") {
			t.Error("a plugin runs beside the orphan")
		}
		return nil
	})
}

func (r *real) wantAlive(t *testing.T) {
	t.Helper()
	if nodetest.Ended(r.pid, "") {
		t.Fatal("the plugin is dead already")
	}
}

// The plugin of an ADD that was killed goes on and holds the lock. DEL waits
// for it, then kills it, and never runs beside it. Who else holds the lock lives on: see package
// scratch.
func TestOrphanIsKilled(t *testing.T) {
	t.Parallel()
	for name, del := range map[string]func(*node){
		"after LockTimeout": func(n *node) {
			n.LockTimeout = 20 * time.Millisecond
			n.del(eth0)
		},
		"at the end of the context": func(n *node) {
			ctx, cancel := context.WithTimeout(n.Context(), 20*time.Millisecond)
			defer cancel()
			nodetest.Code(n, n.Del(ctx, eth0, DelRequest{}), 11)
			n.WantTrace()
			n.del(eth0) // the next has no need to wait
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			r := startReal(t, n, "ADD")
			r.orphan(t, n)
			n.wantRecords("c1/eth0 planned")
			del(n)
			nodetest.Equal(t, "the orphan has ended", nodetest.Ended(r.pid, ""), true)
			n.WantTrace("DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0")
			n.wantNothing()
			n.add(eth0)
			n.del(eth0)
			n.wantNothing()
		})
	}
}

// The plugin of a GC that was killed goes on with its list. So nothing is recorded
// beside it: an ADD, or another GC, waits for it, and then kills it.
func TestOrphanOfAGCIsKilled(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		do    func(n *node) error
		locks []string
	}{
		"ADD": {func(n *node) error {
			_, err := n.Add(n.Context(), key("c2", "eth0"), pair(key("c2", "eth0")))
			return err
		}, []string{"c1@lock", "c2@lock"}},
		"GC": {func(n *node) error { return n.verb(n.Context(), "GC of none") }, []string{"c1@lock"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.add(eth0)
			r := startReal(t, n, "GC of none")
			n.Trace()
			n.LockTimeout = 20 * time.Millisecond
			nodetest.Code(t, tt.do(n), 11)
			r.wantAlive(t)
			n.WantTrace()
			r.orphan(t, n)
			n.LockTimeout = 2 * time.Second // half of it is for plugins that are told
			nodetest.OK(t, tt.do(n))
			nodetest.Equal(t, "the orphan has ended", nodetest.Ended(r.pid, ""), true)
			nodetest.Equal(t, "locks", n.locks(), tt.locks)
		})
	}
}

// A GC that is killed without a plugin leaves a lock that the next operation removes.
func TestLockOfAKilledGCIsRemoved(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	lock := filepath.Join(n.Dir, records.LockName(records.Collector()))
	nodetest.OK(t, os.MkdirAll(n.Dir, 0o700))
	nodetest.OK(t, os.WriteFile(lock, []byte("{}"), 0o600))
	n.add(eth0)
	nodetest.Equal(t, "locks", n.locks(), []string{"c1@lock"})
}

// locks returns the names of the files of locks.
func (n *node) locks() (names []string) {
	for _, name := range n.files() {
		if strings.HasSuffix(name, "@lock") {
			names = append(names, name)
		}
	}
	return names
}

// The disk is full: what cannot be recorded is not done, what cannot be noted
// is undone, and DEL works all the same.
func TestAddOnAFullDisk(t *testing.T) {
	t.Parallel()
	dead := newNode(t)
	dead.crash("ADD bridge", eth0)
	planned, err := os.Stat(dead.recordFile(eth0))
	nodetest.OK(t, err)
	forPlan := uint64(planned.Size()) + 30 // room for it, and not for what follows
	dels := []string{"DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0"}
	for name, tt := range map[string]struct {
		role   role
		before bool
		code   uint
		trace  []string
		after  []string
	}{
		"ADD, nothing fits":  {role{Verb: "ADD", Limit: 1}, false, 5, nil, nil},
		"ADD, the plan fits": {role{Verb: "ADD", Limit: forPlan}, false, 5, []string{"ADD bridge eth0", "DEL bridge eth0"}, nil},
		"ADD, undo fails":    {role{Verb: "ADD", Limit: forPlan, FailAt: "DEL bridge"}, false, 5, []string{"ADD bridge eth0", "DEL bridge eth0"}, []string{"c1/eth0 planned"}},
		"ATTACH":             {role{Verb: "ATTACH", Limit: 1}, true, 5, nil, []string{"c1/eth0 added"}},
		"DEL":                {role{Verb: "DEL", Limit: 1}, true, 0, dels, nil},
		"DEL that fails":     {role{Verb: "DEL", Limit: 1, FailAt: "DEL bridge"}, true, 101, dels, []string{"c1/eth0 added"}},
		"GC":                 {role{Verb: "GC", Limit: 1}, true, 0, dels, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			if tt.before {
				n.add(eth0)
			}
			r := tt.role
			r.Dir = n.Dir
			out := start(t, r).end()
			nodetest.Equal(t, "code", out.Code, tt.code)
			nodetest.Equal(t, "calls", out.Trace, tt.trace)
			n.wantRecords(tt.after...)
			n.del(eth0) // when there is room again
			nodetest.Equal(t, "files", n.files(), nil)
		})
	}
}

// A meta-plugin that is run by itself for the same container would wait for
// itself for ever: its ADD fails at once, and the DEL that undoes that does not,
// or the container could never go.
func TestOperationInsideAnotherIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Invoker = &delegate.Invoker{Exec: &delegate.Process{}, Path: []string{filepath.Dir(nested(t, n.Dir))}, Env: []string{"PATH=" + os.Getenv("PATH"), noRaceSleep}}
	_, err := n.Add(t.Context(), eth0, Transaction{Plan: Plan(attachment(nodetest.Network("blue", "nested"), "c1", "eth0"))})
	nodetest.Code(t, err, 7)
	nodetest.Says(t, err, "runs inside the operation")
	nodetest.Equal(t, "files", n.files(), nil)
}

// nested returns a plugin whose ADD and DEL are those of this test in dir, and
// that says what came of them as a plugin does.
func nested(t *testing.T, dir string) string {
	t.Helper()
	self, err := os.Executable()
	nodetest.OK(t, err)
	path := filepath.Join(t.TempDir(), "nested")
	text := fmt.Sprintf(`#!/bin/sh
cat >/dev/null
export %s='{"Dir":"%s","Verb":"'$CNI_COMMAND'"}'
out=$(%s | sed 's/"Code"/"code"/;s/"Err"/"msg"/')
echo "$out"
case $out in *'"code":0,'*) exit 0;; esac
exit 1
`, roleEnv, dir, self)
	nodetest.OK(t, os.WriteFile(path, []byte(text), 0o700))
	return path
}

// A role is what this test's binary does as another process.
type role struct {
	Dir  string
	Verb string // "ADD", "CHECK", "DEL", "ATTACH" or "DETACH" of eth0, "GC" of all, or "GC of none"

	FailAt string // fails there, with code 101
	Limit  uint64 // of the size of files, if not 0

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
	n := &node{Manager: &Manager{machine: &fileMachine{}, Invoker: &delegate.Invoker{Exec: x}, Dir: r.Dir}, Node: &nodetest.Node{Exec: x}, Dir: r.Dir}
	if r.Plugins != "" {
		n.Invoker = &delegate.Invoker{Exec: &delegate.Process{Stderr: os.Stderr}, Path: []string{r.Plugins}, Env: r.Env}
	}
	if r.FailAt != "" {
		n.FailOn(r.FailAt, 101)
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

// A process plays a role.
type process struct {
	t              testing.TB
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
}

func start(tb testing.TB, r role) *process {
	tb.Helper()
	spec, err := json.Marshal(r)
	nodetest.OK(tb, err)
	p := &process{t: tb, cmd: exec.CommandContext(tb.Context(), "/proc/self/exe")}
	p.cmd.Env = append(os.Environ(), noRaceSleep, roleEnv+"="+string(spec))
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // in its group a hidden process might be an orphan
	nodetest.OK(tb, p.cmd.Start())
	return p
}

// end returns what came of the process.
func (p *process) end() (out outcome) {
	p.t.Helper()
	if err := errors.Join(p.cmd.Wait(), json.Unmarshal(p.stdout.Bytes(), &out)); err != nil {
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

// A proc file system without the first process does not show all processes.
func TestScanOfNoProcessesProvesNothing(t *testing.T) {
	t.Parallel()
	for _, proc := range []string{t.TempDir(), "/no-such-directory"} {
		s := &scanner{proc: proc}
		if s.look(true); s.unseen == "" {
			t.Errorf("%s: everything is seen", proc)
		}
	}
}
