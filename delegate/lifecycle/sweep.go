package lifecycle

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/internal/records"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// A Sweeper removes stale attachments on its own initiative:
//
//   - those of a container that is [Dead]
//   - those that a Del or an undo could not remove
//   - those of an Add that has crashed
//   - what a failed or crashed Attach has left
//
// It is needed because some runtimes never send GC, and forget a container whose
// ADD has failed even if the DEL failed as well. A Sweeper does not touch what is
// attached to a container that is [Alive] or [Unknown], nor what another operation is working on.
//
// Without a network namespace a plugin cannot remove everything: bridge leaves its
// ipMasq rules. This holds for GC too.
//
// A Sweeper may be used by one goroutine at a time. Any number of Sweepers may
// work on one directory.
type Sweeper struct {
	// Manager removes what is stale. Nil has no records.
	Manager *Manager

	// Unknown, if not nil, says which attachments of [Unknown] containers are removed too. That
	// is for an operator, who knows that they have ended.
	Unknown func(AddRecord) bool

	// Current, if not nil, returns the network of an attachment as it is
	// configured now. A mistake in the recorded configuration can make both ADD
	// and DEL fail. Then the Sweeper runs the DEL with the network from Current,
	// or else with the one that was last attached under that name. It must have
	// the same types of plugins. The Origin of the attachment says where the
	// network is from.
	Current func(delegate.Attachment) (netconf.Network, error)

	// Wait is the time until the second try. It doubles with each failure, up to ten
	// times Wait. Zero means 30 seconds.
	Wait time.Duration

	// Tell, if not nil, is called for each attachment that was removed. It is
	// also called when an attachment cannot be removed, or a record or the
	// directory cannot be read, unless the reason is the same as the last time.
	// It is called by one goroutine at a time.
	Tell func(SweepResult)

	tries  map[scratch.Key]*try
	absent map[scratch.Key]string // namespaces that the last complete scan has not found
}

// defaultWait is used if [Sweeper.Wait] is zero.
const defaultWait = 30 * time.Second

// sweepTimeout bounds each try.
const sweepTimeout = 30 * time.Second

// sweepers is how many attachments are tried at the same time, so that a plugin
// that hangs does not block the others.
const sweepers = 4

// A SweepResult says what has become of an attachment.
type SweepResult struct {
	Key scratch.Key // what is known of it; zero for the directory
	Err error       // an [*Error] that says why it is still there; nil if it was removed
	At  time.Time   // when it will be tried again; zero for a record that cannot be read
}

// SweepStats count what one pass has found and done.
type SweepStats struct {
	Removed    int // stale, and removed
	Failed     int // stale, tried and still there
	Waiting    int // stale, and not tried: its time has not come, or it is locked
	Unreadable int // records that cannot be read, and the directory
	Unknown    int // attached, and nobody knows whether the containers live
	Pending    int // of these, the ones of which the next pass may know more

	Container, Why string // of the first of the Unknown: its ID, and why nobody knows
}

// A try is the last failure to remove an attachment or to read a record.
type try struct {
	why  string
	wait time.Duration
	at   time.Time // of the next one
}

// Sweep does one pass. It tries the stale attachments whose time has come. The error is that
// of the context.
func (s *Sweeper) Sweep(ctx context.Context) (SweepStats, error) {
	if s.Manager == nil {
		return SweepStats{}, ctx.Err()
	}
	var swept SweepStats
	current := make(map[string]AddRecord) // the last that was attached to each network
	found := make(map[scratch.Key]bool)
	var attached []AddRecord
	var due []scratch.Key
	dead := make(map[scratch.Key]string) // their namespaces
	add := func(k scratch.Key) {
		if found[k] { // something is left of one attachment, and another's namespace is dead
			return
		}
		found[k] = true
		if t := s.tries[k]; t != nil && t.at.After(time.Now()) {
			swept.Waiting++
		} else {
			due = append(due, k)
		}
	}
	for r, err := range s.Manager.Records(ctx) {
		switch {
		case err != nil && ctx.Err() != nil:
			continue // the end of ctx may be why
		case err != nil:
			found[r.Key] = true
			swept.Unreadable++
			s.failed(r.Key, fail(opSweep, r.Key, err), 0)
			continue
		}
		for i, a := range r.Attached {
			if name := a.Network.Name(); r.Whole(i) && r.Updated.After(current[name].Updated) {
				current[name] = r
			}
		}
		if r.State.Attached() || r.Refused {
			attached = append(attached, r)
		}
		if r.Unfinished() {
			add(r.Key)
		}
	}
	for i, j := range s.judge(attached) {
		if r := attached[i]; j.Life == Dead || j.Life == Unknown && s.Unknown != nil && s.Unknown(r) {
			dead[r.Key] = namespaces(r.entries)
			add(r.Key)
		} else if !r.Refused {
			if j.Life == Unknown {
				if swept.Unknown++; swept.Unknown == 1 {
					swept.Container, swept.Why = r.Key.ContainerID, j.Why
				}
			}
			if j.Pending {
				swept.Pending++
			}
		}
	}
	for k := range s.tries {
		if !found[k] {
			delete(s.tries, k)
		}
	}
	e := errand{current: func(a delegate.Attachment) (netconf.Network, bool) { return s.current(a, current) }}
	s.each(due, func(k scratch.Key) (bool, error) { return s.remove(ctx, k, dead, e) }, func(k scratch.Key, done bool, err error) {
		switch {
		case err == nil && !done, err != nil && ctx.Err() != nil: // the end of ctx may be why
			swept.Waiting++
		case err != nil:
			swept.Failed++
			s.failed(k, err, cmp.Or(s.Wait, defaultWait))
		default:
			swept.Removed++
			delete(s.tries, k)
			s.tell(SweepResult{Key: k})
		}
	})
	s.Manager.tidyIndex()
	s.Manager.tidy(func(id string) (*scratch.Lock, error) { return s.Manager.lockIdle(ctx, id) })
	return swept, ctx.Err()
}

// judge is [Manager.Judge], and knows what the last pass has not found: what two complete scans do
// not find is dead.
func (s *Sweeper) judge(rs []AddRecord) []Judgement {
	js := s.Manager.Judge(rs)
	absent := make(map[scratch.Key]string)
	for i, r := range rs {
		if js[i].Life != Unknown || !js[i].Pending {
			continue
		}
		absent[r.Key] = namespaces(r.entries)
		if s.absent[r.Key] == absent[r.Key] {
			js[i] = Judgement{Life: Dead, Why: "two scans have not found its network namespace"}
		}
	}
	s.absent = absent
	return js
}

// namespaces returns a text that identifies the namespaces of es.
func namespaces(es []entry) string {
	ns := make([]string, len(es))
	for i, e := range es {
		ns[i] = fmt.Sprintf("%q/%d/%d/%s", e.NetNS.Path, e.NetNS.Dev, e.NetNS.Inode, e.NetNS.number())
	}
	return fmt.Sprint(len(es), " ", strings.Join(ns, " "))
}

// tidy removes what processes have left that died before they wrote a record: locks and temporary
// files. lock takes the lock of a container without a record, whose Unlock removes them. What cannot
// be removed does no harm.
func (m *Manager) tidy(lock func(id string) (*scratch.Lock, error)) {
	for _, id := range records.Unused(m.Dir) {
		if l, _ := lock(id); l != nil {
			_ = l.Unlock()
		}
	}
}

// Run calls Sweep until ctx ends, with a pause after each pass. The error is that
// of the context. seen, if not nil, is called after each pass.
func (s *Sweeper) Run(ctx context.Context, pause time.Duration, seen func(SweepStats)) error {
	for {
		swept, err := s.Sweep(ctx)
		if seen != nil {
			seen(swept)
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// each calls do with each of due, several at the same time but one after another for one
// container, and after with what do has returned, one at a time.
func (s *Sweeper) each(due []scratch.Key, do func(scratch.Key) (bool, error), after func(scratch.Key, bool, error)) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	free := make(chan struct{}, sweepers)
	containers := make(map[string][]scratch.Key)
	for _, k := range due {
		containers[k.ContainerID] = append(containers[k.ContainerID], k)
	}
	for _, k := range due {
		all := containers[k.ContainerID]
		if delete(containers, k.ContainerID); all == nil {
			continue
		}
		free <- struct{}{}
		wg.Go(func() {
			for _, k := range all {
				done, err := do(k)
				mu.Lock()
				after(k, done, err)
				mu.Unlock()
			}
			<-free
		})
	}
	wg.Wait()
}

// remove removes what is stale of the record of k: all of it if its container is among the dead, and
// else what is unfinished. done is false if nothing is stale, or if another operation is working on
// the container.
func (s *Sweeper) remove(ctx context.Context, k scratch.Key, dead map[scratch.Key]string, e errand) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	m := s.Manager
	l, err := m.lockIdle(ctx, k.ContainerID)
	if l == nil || err != nil {
		return false, fail(opSweep, k, err)
	}
	err = m.holding(m.during(ctx, opSweep, k), k.ContainerID, l, func(ctx context.Context, l *scratch.Lock) error {
		r, err := m.store().Get(k)
		if err != nil {
			return except(err, notThere)
		}
		now := m.record(r)
		e.dead = dead[k] == namespaces(now.entries) && m.observe().judge(now.entries).Life != Alive
		done = e.dead || now.Unfinished()
		switch {
		case now.Refused && e.dead:
			return m.forget(ctx, l, k)
		case e.dead && m.attachedBeside(ctx, r, dead):
			return errAttachedBeside
		case e.dead || now.Unfinished() && !r.State.Attached():
			_, err = m.remove(ctx, l, k, e)
		case now.Unfinished():
			e.which = halfDone
			err = m.drop(ctx, l, &r, e)
		}
		return err
	})
	return done, fail(opSweep, k, err)
}

// attachedBeside reports whether a container with the ID of r, which is none of the dead, is attached
// to a network of r. Then r stays, because plugins such as portmap and bandwidth know an attachment by
// network and container only: their DEL would remove what the other one has.
func (m *Manager) attachedBeside(ctx context.Context, r scratch.Record[record], dead map[scratch.Key]string) bool {
	rs, _ := m.store().Container(ctx, r.Key.ContainerID) // a damaged record holds up only itself
	return slices.ContainsFunc(rs, func(other scratch.Record[record]) bool {
		return other.State.Attached() && dead[other.Key] != namespaces(other.Value.Delegates) &&
			slices.ContainsFunc(other.Value.Delegates, func(e entry) bool {
				return slices.ContainsFunc(r.Value.Delegates, func(gone entry) bool { return gone.Network.Name() == e.Network.Name() })
			})
	})
}

var errAttachedBeside = fault.New(types.ErrTryAgainLater, "the container has been started again, and is attached to the network by another record: this one is removed when that one is gone")

// current returns the network of a as it is now.
func (s *Sweeper) current(a delegate.Attachment, known map[string]AddRecord) (netconf.Network, bool) {
	if s.Current != nil {
		if n, err := s.Current(a); err == nil {
			return n, true
		}
	}
	name := a.Network.Name()
	for _, other := range known[name].Attached {
		if other.Network.Name() == name {
			return other.Network, true
		}
	}
	return netconf.Network{}, false
}

// failed notes that k could not be removed because of err, and when to try again.
func (s *Sweeper) failed(k scratch.Key, err error, wait time.Duration) {
	t := s.tries[k]
	if t == nil {
		t = &try{wait: wait}
		if s.tries == nil {
			s.tries = make(map[scratch.Key]*try)
		}
		s.tries[k] = t
	} else {
		t.wait = min(2*t.wait, 10*wait)
	}
	swept := SweepResult{Key: k, Err: err}
	if wait > 0 {
		t.at = time.Now().Add(t.wait)
		swept.At = t.at
	}
	if t.why != err.Error() {
		t.why = err.Error()
		s.tell(swept)
	}
}

func (s *Sweeper) tell(swept SweepResult) {
	if s.Tell != nil {
		s.Tell(swept)
	}
}
