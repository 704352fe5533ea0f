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
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/records"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/status"
)

// Operations of two processes on one container do not overlap.
func TestProcessesTakeTurns(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		role   role
		before bool
		then   string
		code   uint // of the role
		again  uint // of what comes then
	}{
		{role{Verb: "ADD", HoldAt: "ADD tuning"}, false, "DEL", 0, 0},
		{role{Verb: "ADD", HoldAt: "DEL bridge", FailAt: "ADD macvlan"}, false, "DEL", 101, 0},
		{role{Verb: "ADD", HoldAt: "ADD tuning"}, false, "ADD", 0, 7},
		{role{Verb: "DEL", HoldAt: "DEL tuning"}, true, "ADD", 0, 0},
		{role{Verb: "ATTACH", HoldAt: "ADD ipvlan"}, true, "ATTACH", 0, 7},
		{role{Verb: "GC", HoldAt: "DEL tuning"}, true, "DEL", 0, 0},
	} {
		t.Run(tt.role.Verb+" at "+tt.role.HoldAt+", "+tt.then, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			if tt.before {
				n.add(eth0)
			}
			n.Trace()
			r := tt.role
			r.Dir, r.Alone = n.Dir, filepath.Join(t.TempDir(), "alone")
			p := start(t, r)
			p.held()
			nodetest.Code(t, (&node{Manager: another(n, 20*time.Millisecond)}).verb(t.Context(), tt.then), 11)
			n.WantTrace()
			// One that has more time waits, and comes after it.
			n.alone(r.Alone)
			done := make(chan error, 1)
			go func() { done <- n.verb(t.Context(), tt.then) }()
			nodetest.Equal(t, "code", p.end().Code, tt.code)
			nodetest.Code(t, <-done, tt.again)
			n.del(eth0)
			nodetest.Equal(t, "files", n.files(), nil)
		})
	}
}

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
	goOn string // a fifo that the plugin reads
	pid  int    // the plugin's
}

func startReal(t *testing.T, n *node, verb string) *real {
	t.Helper()
	at, _, _ := strings.Cut(verb, " ")
	dir := t.TempDir()
	r := &real{goOn: filepath.Join(dir, "go")}
	running := filepath.Join(dir, "running")
	nodetest.OK(t, errors.Join(syscall.Mkfifo(running, 0o600), syscall.Mkfifo(r.goOn, 0o600)))
	for _, p := range []string{"bridge", "tuning", "macvlan"} {
		nodetest.OK(t, os.WriteFile(filepath.Join(dir, p), []byte(script), 0o700))
	}
	says, err := os.OpenFile(running, os.O_RDWR, 0)
	nodetest.OK(t, err)
	defer says.Close()
	nodetest.OK(t, says.SetReadDeadline(time.Now().Add(2*time.Minute)))
	r.process = start(t, role{
		Dir: n.Dir, Verb: verb, Plugins: dir,
		Env: []string{"PATH=" + os.Getenv("PATH"), "AT=" + at, "RUNNING=" + running, "GO=" + r.goOn},
	})
	buf := make([]byte, 32)
	got, err := says.Read(buf)
	if n, _ := fmt.Sscan(string(buf[:got]), &r.pid); err != nil || n < 1 {
		t.Fatalf("the plugin does not run: %v, %q: %s", err, buf[:got], &r.stderr)
	}
	t.Cleanup(func() {
		if alive(r.pid) {
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
	n.On("", func(context.Context, delegatetest.Call) error {
		if alive(r.pid) {
			t.Error("a plugin runs beside the orphan")
		}
		return nil
	})
}

func (r *real) wantAlive(t *testing.T) {
	t.Helper()
	if !alive(r.pid) {
		t.Fatal("the plugin is dead already")
	}
}

// alive reports whether pid runs.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(after, "Z") && !strings.HasPrefix(after, "X")
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
			nodetest.Code(n, n.Del(ctx, eth0, Removal{}), 11)
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
			nodetest.Equal(t, "the orphan lives", alive(r.pid), false)
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
			nodetest.Equal(t, "the orphan lives", alive(r.pid), false)
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

// The plugin of an ADD that is alive is nobody's to kill.
func TestOwnersPluginIsLeftAlone(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	r := startReal(t, n, "ADD")
	for _, verb := range []string{"DEL", "GC"} {
		nodetest.Code(t, (&node{Manager: another(n, 20*time.Millisecond)}).verb(t.Context(), verb), 11)
	}
	r.wantAlive(t)
	for _, c := range n.Trace() {
		if !strings.HasPrefix(c, "GC ") {
			t.Errorf("%s beside the ADD", c)
		}
	}
	// It goes on, and the others after it.
	goOn, err := os.OpenFile(r.goOn, os.O_WRONLY, 0)
	nodetest.OK(t, err)
	nodetest.OK(t, goOn.Close())
	nodetest.Equal(t, "error", r.end().Err, "")
	n.wantRecords("c1/eth0 added")
	n.del(eth0)
	n.wantNothing()
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
	n := &node{Manager: &Manager{machine: &fileMachine{}, Invoker: &delegate.Invoker{Exec: x}, Dir: r.Dir}, Node: &nodetest.Node{Exec: x}, Dir: r.Dir}
	if r.Plugins != "" {
		n.Invoker = &delegate.Invoker{Exec: &delegate.Process{Stderr: os.Stderr}, Path: []string{r.Plugins}, Env: r.Env}
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
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // in its group a hidden process might be an orphan
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
