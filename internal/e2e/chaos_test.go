package e2e

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// chaosFor is how long daemons come and go; with -short it is 5 seconds at most.
var chaosFor = flag.Duration("chaos.for", 90*time.Second, "how long TestNothingIsLostWhileDaemonsComeAndGo lasts")

// answerTime is how soon after the start of a daemon the ADD of a container that
// has nothing to do with what was before is answered.
const answerTime = 10 * time.Second

// TestNothingIsLostWhileDaemonsComeAndGo: shims ADD, CHECK and DEL while daemons
// are killed, stopped and replaced, and while delegates fail and hang. What a
// runtime has attached stays until it says DEL. What it was told is detached is
// gone in the end, and nothing else is. Each daemon, whatever is in its queue,
// answers the ADD of an unrelated container soon after it has started.
func TestNothingIsLostWhileDaemonsComeAndGo(t *testing.T) {
	w := newWorld(t)
	c := &chaos{world: w, over: make(chan struct{}), event: make(chan struct{})}
	c.turns = time.NewTicker(60 * time.Millisecond) // of two processors, others need some
	defer c.turns.Stop()
	c.unrelated = w.pod(w.thick("1.1.0", w.fake("a"), w.fake("b")))
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
	length := *chaosFor
	if testing.Short() {
		length = min(length, 5*time.Second)
	}
	for end := time.Now().Add(length); time.Now().Before(end) && !t.Failed(); {
		c.round()
	}
	close(c.over)
	c.tell()
	workers.Wait()
	c.settle()
	w.figures(fmt.Sprintf("daemons killed, stopped and replaced for %v, while delegates fail and hang: %d commands, %d DELs queued, the slowest first ADD after %v",
		length, c.commands.Load(), c.queuedDels, c.slowest.Round(10*time.Millisecond)), c.rounds)
}

// chaos is daemons that come and go, and runtimes that do not care.
type chaos struct {
	*world
	d         *daemon
	unrelated *pod
	turns     *time.Ticker  // each is one command of one worker
	over      chan struct{} // closed when the workers are to end

	all []*life

	mu    sync.Mutex // guards event
	event chan struct{}

	commands           atomic.Int64
	rounds, queuedDels int
	slowest            time.Duration
}

// A life is what the runtime knows of a pod: it is gone, live, or has to be
// deleted.
type life struct {
	*pod
	live, dying bool
}

// lives returns n pods with two delegates, of which the second has a fault.
func (c *chaos) lives(n int, fault ...string) (list []*life) {
	for range n {
		list = append(list, &life{pod: c.pod(c.thick("1.1.0", c.fake("a"), c.fake("b", fault...)))})
	}
	c.all = append(c.all, list...)
	return list
}

// markers are what the fakes leave for a pod that is attached.
func (p *life) markers() []string {
	return []string{"a@" + p.id + "@eth0", "b@" + p.id + "@net1"}
}

// begin starts a daemon.
func (c *chaos) begin() {
	c.d = c.startDaemon(daemonConf{keys: object{"connectionLimit": 8, "drainTimeout": "2s"}})
}

// next returns a channel that is closed when the next daemon comes or goes.
func (c *chaos) next() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.event
}

// tell says that a daemon has come or gone.
func (c *chaos) tell() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.event)
	c.event = make(chan struct{})
}

// round has a daemon go, in one way or the other, and the next one come.
func (c *chaos) round() {
	c.t.Helper()
	c.rounds++
	switch c.rounds % 4 {
	case 2: // for two rounds the delegates do what they should
		c.cure()
	case 0:
		c.sicken()
	}
	before := c.commands.Load()
	c.until("the daemon has served", func() bool { return c.commands.Load() >= before+10 || c.t.Failed() })
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
	queued := len(c.queued())
	for range 4 { // turns of the others
		select {
		case <-c.next():
		case <-c.turns.C:
		}
	}
	c.queuedDels += max(len(c.queued())-queued, 0)
	begun := time.Now()
	c.begin()
	c.answers(begun)
}

// answers fails the test unless the daemon, which was started then, serves an
// unrelated container in time.
func (c *chaos) answers(then time.Time) {
	c.t.Helper()
	c.ok("ADD", c.unrelated)
	took := time.Since(then)
	c.slowest = max(c.slowest, took)
	if took > answerTime {
		c.t.Errorf("an unrelated ADD was answered %v after the daemon's start, with %d DELs in the queue", took, len(c.queued()))
	}
	c.ok("DEL", c.unrelated)
}

// work is a runtime, which runs one command of one of its pods at a time.
func (c *chaos) work(lives []*life) {
	for !c.t.Failed() {
		select {
		case <-c.over:
			return
		case <-c.turns.C:
		}
		switch p := lives[rand.IntN(len(lives))]; {
		case p.dying:
			c.del(p)
		case !p.live && rand.IntN(3) == 0:
			c.del(p) // as runtimes do, once more
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

// del deletes a pod, as far as the runtime knows.
func (c *chaos) del(p *life) {
	p.live = false
	var more []extra
	if rand.IntN(2) == 0 {
		more = append(more, withoutNetNS)
	}
	p.dying = c.impatient("DEL", p, more...).code != 0
}

// impatient runs a command, which is told to stop when it has not ended before
// a daemon comes or goes twice. It may end as with a daemon that goes, or as the
// pod's delegate has it.
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
	_ = r.cmd.Process.Signal(syscall.SIGTERM) // or it has ended
	return c.expected(command, p, <-done)
}

// expected fails the test where a command ended otherwise than it may.
func (c *chaos) expected(command string, p *life, a answer) answer {
	switch {
	case a.code == 0 || a.err == nil: // or it was told to stop before it could listen
	case a.err.Code != 11 && (a.err.Code != 111 || command == "CHECK"):
		c.t.Errorf("%s %s: %s", command, p.id, a.stdout)
	}
	return a
}

// intact fails the test where a live pod is not attached any more.
func (c *chaos) intact(p *life) {
	if !p.live {
		return
	}
	for _, name := range p.markers() {
		if _, err := os.Stat(c.file("fake", "live", name)); err != nil {
			c.t.Errorf("%s is live, and was detached: %v", p.id, err)
		}
	}
}

// settle has a last daemon do, in peace, what is left to do, and fails the test
// where something is lost.
func (c *chaos) settle() {
	c.t.Helper()
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
	same(c.t, "attached", want, c.live())
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
