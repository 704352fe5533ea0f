package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/internal/program"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

// workers is how many of the pods that the reconciler attaches have a turn at once. There are few,
// because events come first.
const workers = 4

var errUnattached = errors.New("the pod was started without nri, and runs without its networks: see attachRunning")

// A Pass is what the reconciler found and did in one pass over all records.
type Pass struct {
	Synchronized bool // the first after a Synchronize
	Records      int  // all records
	Damaged      int  // records that cannot be read
	Attached     int  // pods
	Detached     int  // pods
	Failed       int  // pods that could not be attached or detached, to be tried again
	Waiting      int  // pods that are left for a later pass, after failures or because there are many
	Unattached   int  // pods that run without the networks that they select, and stay so
}

// Notable reports whether p is worth a line in the log.
func (p Pass) Notable() bool {
	return p.Synchronized || p.Damaged+p.Attached+p.Detached+p.Failed+p.Unattached > 0
}

// reconcile makes a pass after each Synchronize, and from time to time, until ctx ends. It
// makes up for lost events.
func (p *Plugin) reconcile(ctx context.Context) {
	var sweep <-chan time.Time
	for {
		synchronized := false
		select {
		case <-ctx.Done():
			return
		case <-p.news:
			synchronized = true
		case <-sweep:
		}
		sweep = time.After(time.Duration(p.opened.Load().conf.Sweep))
		pass := p.pass(ctx, synchronized)
		if p.Observer != nil && ctx.Err() == nil {
			p.Observer(pass)
		}
	}
}

// A recordedPod is a pod in the records, as a pass has read them.
type recordedPod struct {
	nad.Pod
	attached bool // completely
}

// A job is a pod to be attached.
type job struct {
	pod
	netns string
}

// pass reads all records, attaches the pods that lack networks, and then detaches what is
// stale: an interrupted ADD of a pod that runs is not stale for the sweep.
func (p *Plugin) pass(ctx context.Context, synchronized bool) Pass {
	pass := Pass{Synchronized: synchronized}
	o := p.opened.Load()
	recorded := make(map[string]recordedPod)
	var jobs []job
	for r, err := range o.life.Records(ctx) {
		pass.Records++
		switch id := r.Key.ContainerID; {
		case err != nil:
			pass.Damaged++
			recorded[id] = recordedPod{}  // may be ours
			if r.Key == (scratch.Key{}) { // otherwise the sweep logs it, once
				o.log.ErrorContext(ctx, "reading records failed", slog.Any("err", err))
			}
		case r.Key == key(id): // not of another program
			recorded[id] = recordedPod{multinet.PodOf(r), r.State.Attached()}
			// The pod is looked up after its record was read, because events change it before
			// its record.
			known, _ := p.pods.get(id)
			if !known.listed || r.State != scratch.Planned {
				continue
			}
			netns := namespace(known.sandbox)
			for _, a := range r.Attached {
				netns = cmp.Or(netns, a.NetNS) // not every runtime repeats it
			}
			if asks, _ := o.asks(ctx, known.sandbox); asks && exists(netns) {
				jobs = append(jobs, job{known, netns}) // the ADD was interrupted, but the pod was started
			}
		}
	}
	for _, known := range p.pods.running() {
		s := known.sandbox
		if _, ok := recorded[s.GetId()]; ok || !o.lacking(ctx, known) {
			continue
		}
		if o.conf.AttachRunning || known.owed {
			jobs = append(jobs, job{known, namespace(s)})
			continue
		}
		pass.Unattached++
		if synchronized {
			o.log.WarnContext(ctx, "runs without its networks", who(podIn(s)))
			o.driver.Attached(s.GetUid(), errUnattached)
		}
	}
	p.attachAll(ctx, jobs, &pass)
	if p.live() {
		p.sweep(ctx, recorded, &pass)
	}
	return pass
}

// lacking reports whether a pod without a record, which the runtime has listed, runs without
// the networks that it selects or has claims for.
func (o *service) lacking(ctx context.Context, known pod) bool {
	if hostNetwork(known.sandbox) {
		return false
	}
	asks, _ := o.asks(ctx, known.sandbox)           // an ADD tells what is wrong
	return asks && exists(namespace(known.sandbox)) // it is removed when a pod stops
}

// exists reports whether there may be a network namespace at a path, to attach a pod in. That there
// is none says nothing about what is attached: another process may see it.
func exists(netns string) bool {
	_, err := os.Stat(netns)
	return err == nil
}

// attachAll attaches pods, a few at once. If the connection to the runtime is lost, it leaves
// the rest, because they may have gone.
func (p *Plugin) attachAll(ctx context.Context, jobs []job, pass *Pass) {
	turns := make(program.Turns, workers)
	var all sync.WaitGroup
	defer all.Wait()
	var mu sync.Mutex // guards pass
	for _, j := range jobs {
		end, ok := turns.Take(ctx)
		if !ok {
			return
		}
		all.Go(func() {
			defer end()
			if !p.live() {
				return
			}
			ctx, cancel := context.WithTimeout(ctx, detachedTimeout)
			defer cancel()
			err := p.attach(ctx, j.sandbox, j.netns, func() error { return nil })
			mu.Lock()
			defer mu.Unlock()
			if _, known := p.pods.get(j.sandbox.GetId()); !known && err != nil { // an event came first
				return
			}
			p.pods.tried(j.sandbox.GetId(), err)
			p.opened.Load().driver.Attached(j.sandbox.GetUid(), err)
			if err == nil {
				pass.Attached++
				return
			}
			pass.Failed++
			p.Logger.ErrorContext(ctx, "reconciling", who(podIn(j.sandbox)), slog.Any("err", err))
		})
	}
}

// sweep detaches what is stale: what a failed or interrupted operation has left, and pods whose
// network namespace is gone for certain. After a restart, a runtime lists dead pods for a long time
// and sends no event for them. It also sends none for a pod that it has given up because a later
// plugin failed. A pod that the runtime does not list may run all the same: it stays attached. pods
// are those of the records.
func (p *Plugin) sweep(ctx context.Context, pods map[string]recordedPod, pass *Pass) {
	o := p.opened.Load()
	if p.sweeper == nil {
		p.sweeper = &lifecycle.Sweeper{Manager: o.life, Wait: p.pause}
	}
	confDir := &netconf.Dir{FS: os.DirFS(o.conf.ConfDir)}
	p.sweeper.Current = func(a delegate.Attachment) (netconf.Network, error) {
		if nad.ParseOrigin(a.Origin).Use == nad.UseClaimed {
			return a.Network, nil
		}
		return netconf.Load(confDir, a.Network.Name())
	}
	p.sweeper.Tell = func(s lifecycle.SweepResult) {
		id := s.Key.ContainerID
		o.driver.Attached(pods[id].UID, s.Err)
		if s.Err == nil && pods[id].attached { // it is dead; else what a failed undo has left is removed, and the pod may run
			p.pods.forget(id)
		}
		program.LogSwept(ctx, o.log, s, slog.String("pod", pods[id].String()))
	}
	swept, _ := p.sweeper.Sweep(ctx) // fails only if ctx has ended
	pass.Detached += swept.Removed
	pass.Failed += swept.Failed
	pass.Waiting += swept.Waiting
}
