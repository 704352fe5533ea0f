package thick

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A Load says how many operations of one kind there are.
type Load struct {
	InFlight int // running, including undo
	Queued   int // waiting for their container or their turn
}

// window is how often spare changes while operations wait for their turn.
const window = 20 * time.Millisecond

// A pool limits how many operations run at once. Each kind has a limiter, and may always run
// least of its operations. While operations wait, spare more run: their number grows as long as
// a processor has nothing to do, because those that run then wait for the kernel or the disk. The
// spare turns go to the first kind first.
type pool struct {
	least, most int // most is of spare; 0 is a limit that does not change
	processors  int
	runnable    func() (tasks int, known bool) // that have a processor, or wait for one

	mu       sync.Mutex // guards the following, and the limiters
	kinds    []*limiter
	spare    int
	adapting bool
	average  float64 // of the runnable tasks, of late
}

// A limiter limits how many operations of one kind run at once and how many more wait for
// their turn: first come, first served.
type limiter struct {
	*pool

	queue    int // how many may be admitted beyond those that run, or may run
	admitted int
	running  int
	waiting  []chan struct{} // each is closed when its turn has come
}

// newLimiter returns a limiter of running operations at once, whatever they wait for.
func newLimiter(running, waiting int) *limiter {
	return (&pool{least: running}).kind(waiting)
}

// kind returns a limiter for one more kind of operations. At most waiting of them wait.
func (p *pool) kind(waiting int) *limiter {
	l := &limiter{pool: p, queue: waiting}
	p.kinds = append(p.kinds, l)
	return l
}

// admit takes a place and reports whether there was one. leave returns it.
func (l *limiter) admit() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.admitted >= l.queue+max(l.running, l.least) {
		return false
	}
	l.admitted++
	return true
}

func (l *limiter) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.admitted--
}

// wait waits until the turn has come. If ctx ends first, wait returns why. release ends the
// turn.
func (l *limiter) wait(ctx context.Context) error {
	turn := make(chan struct{})
	l.mu.Lock()
	l.waiting = append(l.waiting, turn)
	l.serve()
	l.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	i := slices.Index(l.waiting, turn)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	l.mu.Unlock()
	if i < 0 { // the turn has come at the same time
		l.release()
	}
	return context.Cause(ctx)
}

func (l *limiter) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	l.serve()
}

func (l *limiter) load() Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Load{InFlight: l.running, Queued: max(0, l.admitted-l.running)}
}

// serve gives turns to those that wait. If some still wait, spare is adapted from then on.
func (p *pool) serve() {
	beyond := 0 // the least of their kind
	for _, l := range p.kinds {
		beyond += max(0, l.running-p.least)
	}
	waiting := false
	for _, l := range p.kinds {
		for len(l.waiting) > 0 && (l.running < p.least || beyond < p.spare) {
			close(l.waiting[0])
			l.waiting = l.waiting[1:]
			if l.running++; l.running > p.least {
				beyond++
			}
		}
		waiting = waiting || len(l.waiting) > 0
	}
	if waiting && !p.adapting && p.most > 0 {
		p.average, p.spare, p.adapting = float64(p.processors), beyond, true
		time.AfterFunc(window, p.adapt)
	}
}

// adapt changes spare by one, if operations still wait.
func (p *pool) adapt() {
	tasks, known := p.runnable()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !known || !slices.ContainsFunc(p.kinds, func(l *limiter) bool { return len(l.waiting) > 0 }) {
		p.spare, p.adapting = 0, false
		return
	}
	p.average += (float64(tasks) - p.average) / 4
	if p.average < float64(p.processors) {
		p.spare = min(p.spare+1, p.most)
	} else {
		p.spare = max(p.spare-1, 0)
	}
	time.AfterFunc(window, p.adapt)
	p.serve()
}

// runnable returns how many tasks of the whole machine have a processor or wait for one, but the
// one that asks. Only Linux tells.
func runnable() (tasks int, known bool) {
	text, _ := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(text))
	if len(fields) < 4 {
		return 0, false
	}
	now, _, _ := strings.Cut(fields[3], "/")
	tasks, err := strconv.Atoi(now)
	return tasks - 1, err == nil && tasks > 0
}
