package e2e

import (
	"flag"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/metacni/metacni/internal/nodetest"
)

var chaosFor = flag.Duration("chaos.for", 5*time.Second, "how long TestNothingIsLostWhileDaemonsComeAndGo lasts")

// answerTime limits the time from the start of a daemon until it has answered
// the ADD of a container that the daemon before did not know.
const answerTime = 10 * time.Second

// TestNothingIsLostWhileDaemonsComeAndGo: shims ADD, CHECK and DEL while
// daemons are killed, stopped and replaced, and while delegates fail and hang.
// An attached container stays attached until its DEL. A container whose DEL
// succeeded is detached in the end. Each daemon, whatever is in its queue,
// answers the ADD of an unrelated container soon after it starts.
func TestNothingIsLostWhileDaemonsComeAndGo(t *testing.T) {
	n := newNode(t)
	c := &chaos{node: n, over: make(chan struct{}), event: make(chan struct{})}
	c.turns = time.NewTicker(60 * time.Millisecond) // leaves some of two processors to others
	defer c.turns.Stop()
	c.unrelated = n.pod(n.thick("1.1.0", n.fake("a"), n.fake("b")))
	c.begin()
	c.answers(time.Now())

	var workers sync.WaitGroup
	for range 4 {
		lives := slices.Concat(c.lives(1), c.lives(2, "DEL", "flaky"))
		workers.Go(func() { c.work(lives) })
	}
	for range 2 {
		lives := slices.Concat(c.lives(1, "ADD", "fail"), c.lives(1, "ADD", "hang"), c.lives(2, "DEL", "fail"), c.lives(2, "DEL", "hang"))
		workers.Go(func() { c.work(lives) })
	}
	for end := time.Now().Add(*chaosFor); time.Now().Before(end) && !t.Failed(); {
		c.round()
	}
	close(c.over)
	c.tell()
	workers.Wait()
	c.settle()
}

// chaos is a node of daemons that come and go, and of runtimes that call their
// shims all the time.
type chaos struct {
	*node
	d         *daemon
	unrelated *pod
	turns     *time.Ticker  // each tick is one command of one worker
	over      chan struct{} // closed to end the workers

	all []*life

	mu    sync.Mutex // guards event
	event chan struct{}

	commands atomic.Int64
	rounds   int
}

// A life is a pod in the runtime's view: gone, live, or dying, if it must be
// deleted.
type life struct {
	*pod
	live, dying bool
}

// lives returns n pods with two delegates. The second has the faults.
func (c *chaos) lives(n int, fault ...string) (list []*life) {
	for range n {
		list = append(list, &life{pod: c.pod(c.thick("1.1.0", c.fake("a"), c.fake("b", fault...)))})
	}
	c.all = append(c.all, list...)
	return list
}

// markers are the files that the fakes keep for p while it is attached.
func (p *life) markers() []string {
	return []string{"a@" + p.id + "@eth0", "b@" + p.id + "@net1"}
}

// begin starts a daemon.
func (c *chaos) begin() {
	c.d = c.startDaemon(daemonConf{keys: object{"connectionLimit": 8, "drainTimeout": "2s"}})
}

// next returns a channel that is closed when a daemon starts or ends.
func (c *chaos) next() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.event
}

// tell reports that a daemon has started or ended.
func (c *chaos) tell() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.event)
	c.event = make(chan struct{})
}

// round ends a daemon in one of several ways and starts the next.
func (c *chaos) round() {
	c.Helper()
	c.rounds++
	switch c.rounds % 4 {
	case 2: // for two rounds the delegates have no faults
		c.cure()
	case 0:
		c.sicken()
	}
	before := c.commands.Load()
	c.until("the daemon has served", func() bool { return c.commands.Load() >= before+10 || c.Failed() })
	switch old := c.d; rand.IntN(3) {
	case 0:
		old.kill()
	case 1:
		old.signal(syscall.SIGTERM)
		old.ended()
	default:
		c.begin()
		c.until("the next daemon waits", c.d.waits)
		old.signal(syscall.SIGTERM)
		old.ended()
		c.tell()
		c.answers(time.Now())
		return
	}
	c.tell()
	for range 4 { // turns of the workers
		select {
		case <-c.next():
		case <-c.turns.C:
		}
	}
	begun := time.Now()
	c.begin()
	c.answers(begun)
}

// answers fails the test unless the daemon, started at the time then, serves an
// unrelated container in time.
func (c *chaos) answers(then time.Time) {
	c.Helper()
	c.ok("ADD", c.unrelated)
	if took := time.Since(then); took > answerTime {
		c.Errorf("an unrelated ADD was answered %v after the daemon's start, with %d DELs in the queue", took, len(c.queued()))
	}
	c.ok("DEL", c.unrelated)
}

// work is a runtime that runs one command of one of its pods at a time.
func (c *chaos) work(lives []*life) {
	for !c.Failed() {
		select {
		case <-c.over:
			return
		case <-c.turns.C:
		}
		switch p := lives[rand.IntN(len(lives))]; {
		case p.dying:
			c.del(p)
		case !p.live && rand.IntN(3) == 0:
			c.del(p) // runtimes repeat DEL
		case !p.live:
			a := c.impatient("ADD", p)
			p.live, p.dying = a.code == 0, a.code != 0
			if p.live {
				p.result = a.stdout
			}
		case rand.IntN(2) == 0:
			c.impatient("CHECK", p)
		default:
			c.del(p)
		}
		for _, p := range lives {
			c.intact(p)
		}
		c.commands.Add(1)
	}
}

// del runs a DEL of a pod, which is dying if that fails.
func (c *chaos) del(p *life) {
	p.live = false
	var more []extra
	if rand.IntN(2) == 0 {
		more = append(more, withoutNetNS)
	}
	p.dying = c.impatient("DEL", p, more...).code != 0
}

// impatient runs a command and sends it SIGTERM if two changes of daemons come
// before its answer.
func (c *chaos) impatient(command string, p *life, extras ...extra) answer {
	r := c.start(command, p.pod, extras...)
	done := make(chan answer, 1)
	go func() { done <- c.wait(r) }()
	for range 2 {
		select {
		case a := <-done:
			return c.expected(command, p, a)
		case <-c.next():
		case <-c.over:
		}
	}
	_ = r.cmd.Process.Signal(syscall.SIGTERM) // fails if it has exited
	return c.expected(command, p, <-done)
}

// expected fails the test if the command failed for another reason than an
// absent daemon, a signal or the pod's faulty delegate.
func (c *chaos) expected(command string, p *life, a answer) answer {
	switch {
	case a.code == 0 || a.err == nil: // err is nil if SIGTERM came before the handler was set
	case a.err.Code != 11 && (a.err.Code != 111 || command == "CHECK"):
		c.Errorf("%s %s: %s", command, p.id, a.stdout)
	}
	return a
}

// intact fails the test if a live pod has been detached.
func (c *chaos) intact(p *life) {
	if !p.live {
		return
	}
	for _, name := range p.markers() {
		if _, err := os.Stat(c.file("fake", "live", name)); err != nil {
			c.Errorf("%s is live, but was detached: %v", p.id, err)
		}
	}
}

// settle lets a last daemon finish the remaining work without disturbance, and
// fails the test if anything is lost or left.
func (c *chaos) settle() {
	c.Helper()
	c.d.kill()
	c.cure()
	c.begin()
	c.answers(time.Now())
	var want []string
	for _, p := range c.all {
		if p.dying {
			c.ok("DEL", p.pod)
		}
		if p.live {
			want = append(want, p.markers()...)
		}
	}
	c.until("the queue is empty", func() bool { return len(c.queued()) == 0 })
	slices.Sort(want)
	nodetest.Equal(c, "attached", c.live(), want)
	for _, p := range c.all {
		if p.live {
			c.ok("CHECK", p.pod)
			c.ok("DEL", p.pod)
		}
	}
	c.noTrace()
	c.d.signal(syscall.SIGTERM)
	c.d.ended()
}
