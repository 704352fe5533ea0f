package history

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// roleEnv makes this program a worker or a daemon: "ROLE MACHINE PROCESS".
const roleEnv = "METACNI_HISTORY_ROLE"

// A node is a machine with its processes.
type node struct {
	testing.TB
	machine
	*logbook
	program string // of workers and daemons
	thick   bool   // commands go to daemons
	often   int    // how often what is rare happens, usually 1
	rand    *rand.Rand

	workers []*child // nil is one that has been killed
	daemon  *child
	changes chan struct{} // has an element when a worker asks for another daemon
	closers []func()

	rounds, ops int
	judged      int // bytes of the log

	mu       sync.Mutex // guards the following
	started  int
	children map[int]*child // by process ID
}

// A child is a process of a node.
type child struct {
	*exec.Cmd
	name  string
	stdin io.WriteCloser
	ends  atomic.Bool   // by the test, which has sent it a signal
	done  chan struct{} // has an element when it has done a round
	ended chan struct{} // closed when it has ended
}

// newNode makes a node that lasts until the test ends.
func newNode(tb testing.TB, program string, seed uint64, thick bool, often int) *node {
	tb.Helper()
	dir, err := os.MkdirTemp("/run", "history-") //nolint:usetesting // it is in memory, and gone with the private host
	nodetest.OK(tb, err)
	n := &node{
		TB: tb, machine: machine(dir), program: program, thick: thick, often: often, rand: rand.New(rand.NewPCG(seed, 1)),
		workers: make([]*child, 3), changes: make(chan struct{}, 1), children: make(map[int]*child),
	}
	tb.Cleanup(n.close)
	for _, name := range []string{"there", "ns", "daemon"} {
		nodetest.OK(tb, os.Mkdir(n.path(name), 0o700))
	}
	for _, name := range []string{"killer", "life"} {
		nodetest.OK(tb, syscall.Mkfifo(n.path(name), 0o600))
	}
	n.logbook, err = openLog(dir, "test")
	nodetest.OK(tb, err)
	nodetest.OK(tb, n.serveKills())
	if thick {
		n.daemon = n.start("daemon")
	}
	return n
}

// close ends the processes of the node and removes its directory.
func (n *node) close() {
	n.mu.Lock()
	all := slices.Collect(maps.Values(n.children))
	n.mu.Unlock()
	for _, c := range all {
		c.end(syscall.SIGKILL)
		<-c.ended
	}
	for _, f := range n.closers {
		f()
	}
	if n.logbook != nil {
		_ = n.file.Close()
	}
	_ = os.RemoveAll(string(n.machine))
}

// serveKills does what processes ask for on the fifo, until the node is closed: each line is
// the ID of a process to be killed, or 0 for another daemon.
func (n *node) serveKills() error {
	killer, err := os.OpenFile(n.path("killer"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for in := bufio.NewScanner(killer); in.Scan(); {
			pid, err := strconv.Atoi(in.Text())
			if err == nil && pid == 0 {
				select {
				case n.changes <- struct{}{}:
				default: // one is asked for already
				}
				continue
			}
			n.mu.Lock()
			c := n.children[pid]
			n.mu.Unlock()
			if c != nil {
				c.end(syscall.SIGKILL)
			}
		}
	})
	n.closers = append(n.closers, func() {
		_ = killer.Close()
		serving.Wait()
	})
	return nil
}

// end sends c a signal.
func (c *child) end(with os.Signal) {
	c.ends.Store(true)
	_ = c.Process.Signal(with) // fails if it has ended
}

// start starts a process of the node.
func (n *node) start(role string) *child {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.started++
	c := &child{name: role + strconv.Itoa(n.started), done: make(chan struct{}, 1), ended: make(chan struct{})}
	c.Cmd = exec.Command(n.program) // close kills it, and waits
	pause := 32 / n.often
	if n.thick && role == "worker" { // it has few steps
		pause = 4
	}
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s %d", roleEnv, role, n.machine, c.name, n.often), fmt.Sprint("METACNI_STEPS=pause ", pause),
		"GOMAXPROCS=1", "GOGC=800") // there are many, and each lives shortly
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := c.StdinPipe()
	nodetest.OK(n, err)
	stdout, err := c.StdoutPipe()
	nodetest.OK(n, err)
	nodetest.OK(n, c.Start())
	c.stdin = stdin
	n.children[c.Process.Pid] = c
	go func() {
		defer close(c.ended)
		for says := bufio.NewScanner(stdout); says.Scan(); {
			c.done <- struct{}{}
		}
		err := c.Wait()
		n.say(now(), "dead", c.name)
		if err != nil && !c.ends.Load() {
			n.wrong("process %s: %v", c.name, err)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.children, c.Process.Pid)
	}()
	return c
}

// do has a worker do a round, and reports whether it has lived to do it all.
func (c *child) do(r round) bool {
	text, err := json.Marshal(r)
	if err == nil {
		_, err = c.stdin.Write(append(text, '\n'))
	}
	if err != nil { // it has been killed
		<-c.ended
		return false
	}
	select {
	case <-c.done:
		return true
	case <-c.ended:
		return false
	}
}

// work has the i'th worker do r. Whenever it is killed another one does half as much.
func (n *node) work(i int, r round) {
	for {
		if n.workers[i] == nil {
			n.workers[i] = n.start("worker")
		}
		if n.workers[i].do(r) {
			return
		}
		n.workers[i] = nil
		r.Seed, r.Ops = r.Seed+1, r.Ops/2
	}
}

// changeDaemons replaces the daemon in one of several ways whenever a worker asks for that, and
// when it has been killed.
func (n *node) changeDaemons(over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case <-n.daemon.ended:
			n.daemon = n.start("daemon")
			continue
		case <-n.changes:
		}
		old := n.daemon
		switch n.rand.IntN(3) {
		case 0:
			old.end(syscall.SIGKILL)
			<-old.ended
			n.daemon = n.start("daemon")
		case 1:
			old.end(syscall.SIGTERM)
			<-old.ended
			n.daemon = n.start("daemon")
		default:
			n.daemon = n.start("daemon")
			old.end(syscall.SIGTERM)
			<-old.ended
		}
	}
}

// round does operations on new attachments, and returns what is wrong with their history.
func (n *node) round(ops int) string {
	n.rounds++
	r := round{Seed: n.rand.Uint64(), Ops: ops / len(n.workers), Daemon: n.thick}
	for c := range 2 + n.rand.IntN(2) {
		container := fmt.Sprintf("r%dc%d", n.rounds, c)
		r.Keys = append(r.Keys, container+"/eth0")
		if c == 0 {
			r.Keys = append(r.Keys, container+"/eth1")
		}
		defer nodetest.NetNS(n, n.path("ns", container))()
	}
	life, err := os.OpenFile(n.path("life"), os.O_RDWR, 0)
	nodetest.OK(n, err)
	defer life.Close()
	over := make(chan struct{})
	var changing sync.WaitGroup
	if n.thick {
		changing.Go(func() { n.changeDaemons(over) })
	}
	n.all(r)
	close(over)
	changing.Wait()
	nodetest.OK(n, os.WriteFile(n.path("calm"), nil, 0o600))
	if n.thick {
		n.daemon.end(syscall.SIGTERM)
		<-n.daemon.ended
		n.daemon = n.start("daemon")
		away := r
		away.Away = true
		n.work(0, away)
	}
	n.settle(r.Keys)
	r.Finish = true
	n.work(0, r)
	n.settle(r.Keys)
	n.spared()
	nodetest.OK(n, os.Remove(n.path("calm")))
	return n.judge(r.Keys)
}

// all has all workers do r at the same time.
func (n *node) all(r round) {
	var all sync.WaitGroup
	for i := range n.workers {
		mine := r
		mine.Seed += uint64(i)
		all.Go(func() { n.work(i, mine) })
	}
	all.Wait()
}

// queueTimeout is how long DELs may be in the queue of a daemon that is there.
const queueTimeout = 5 * time.Minute

// settle looks at the attachments when the queue is empty.
func (n *node) settle(keys []string) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	limit := time.After(queueTimeout)
	for late := false; n.queued() > 0 && !late; {
		select {
		case <-tick.C:
		case <-limit:
			late = true
			n.wrong("DELs stay in the queue")
		}
	}
	for _, k := range keys {
		at, seen := now(), n.look(keyOf(k))
		id := "test." + strconv.FormatInt(n.last.Add(1), 10)
		n.say(at, "call", id, "LOOK", k, seen)
		n.say(now(), "ret", id, done)
	}
}

// queued is the number of DELs in the queue.
func (n *node) queued() int {
	all, _ := filepath.Glob(n.path("queue", "*.json"))
	return len(all)
}

// look returns what there is of an attachment, see [state.seen], while no operation runs.
func (n *node) look(k scratch.Key) string {
	rs, err := (&lifecycle.Manager{Dir: n.path("state")}).Container(context.Background(), k.ContainerID)
	if err != nil {
		return fmt.Sprintf("%q", err)
	}
	i := slices.IndexFunc(rs, func(r lifecycle.AddRecord) bool { return r.Key == k })
	if i < 0 {
		left, _ := filepath.Glob(n.path("there", "*@"+k.ContainerID+"@"+k.IfName+"*"))
		if len(left) > 0 {
			n.wrong("%s: attached and not recorded: %q", k, left)
		}
		return state{}.seen()
	}
	if !rs[i].State.Attached() {
		return state{own: half}.seen()
	}
	s := state{own: attached}
	for j, a := range rs[i].Attached {
		c := call{plugin: a.Network.Plugins()[0].Type(), container: k.ContainerID, ifname: a.IfName}
		switch whole := rs[i].Whole(j); {
		case whole && !n.there(c.marker()):
			n.wrong("%s: recorded and not attached: %s", k, a.IfName)
		case strings.Contains(a.IfName, "-hot"):
			s.hot[a.IfName[len(a.IfName)-1]-'0'] = map[bool]phase{true: attached, false: half}[whole]
		}
	}
	return s.seen()
}

// judge returns what is wrong with the history of the round.
func (n *node) judge(keys []string) string {
	told := n.told()
	n.judged += told.size
	n.ops += told.calls
	if len(told.wrong) > 0 {
		return strings.Join(told.wrong, "\n")
	}
	for _, p := range partsOf(keys, told.ops) {
		if p.illegal(0) {
			return fmt.Sprintf("no order explains the answers of these operations, whatever others did:\n%s", p.shrink())
		}
	}
	return ""
}

// spared looks whether the processes live that plugins have left behind. Nobody may have killed
// one whose operation has ended; that of a process that was killed has not.
func (n *node) spared() {
	told := n.told()
	for _, l := range told.left {
		if !slices.Contains(told.dead, l.process) && nodetest.Ended(l.pid, "") {
			n.wrong("process %d is dead, which a plugin of %s has left behind", l.pid, l.process)
		}
	}
}

// told returns the account of the log since the last round.
func (n *node) told() account {
	text, err := os.ReadFile(n.path("log"))
	nodetest.OK(n, err)
	text = text[n.judged:]
	told, err := read(text[:bytes.LastIndexByte(text, '\n')+1]) // an orphan may be writing
	nodetest.OK(n, err)
	return told
}

// keep copies the log to where it survives the test, and returns its path.
func (n *node) keep(seed uint64) string {
	path := filepath.Join(filepath.Dir(os.TempDir()), fmt.Sprintf("metacni-history-%d.log", seed))
	text, err := os.ReadFile(n.path("log"))
	nodetest.OK(n, err)
	nodetest.OK(n, os.WriteFile(path, text, 0o600))
	return path
}

// playDaemon is the main of a daemon. It serves until SIGTERM, or the end of the test.
func playDaemon(m machine, process string, often int) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	untilEOF()
	p, err := newPlugins(m, process)
	if err != nil {
		return err
	}
	p.odds = p.often(often)
	p.die *= 4 // each is many operations that fail
	l, err := thick.Listen(ctx, nil, m.path("daemon", "socket"))
	if err != nil {
		if ctx.Err() != nil {
			return nil // another daemon has it
		}
		return err
	}
	s := &thick.Server{
		Plugin: plugin.Plugin{
			StateDir: m.path("state"),
			Prepare:  func(c *plugin.Call) error { c.Manager.LockTimeout = lockTimeout; return nil },
			Networks: func(_ context.Context, c *plugin.Call) (nets []netconf.Network, _ error) {
				return []netconf.Network{primary(c.Key())[0].Network}, nil // for GC
			},
			Add: func(ctx context.Context, c *plugin.Call) error {
				as := primary(c.Key())
				for i := range as {
					as[i].ContainerID, as[i].NetNS = c.ContainerID, c.NetNS
				}
				return c.Add(ctx, lifecycle.Transaction{Plan: lifecycle.Plan(as...)})
			},
		},
		System: func() plugin.System {
			return plugin.System{Exec: p, InterfaceNames: p.names, Stderr: os.Stderr}
		},
		Queue: m.path("queue"),
	}
	return s.Serve(ctx, l)
}
