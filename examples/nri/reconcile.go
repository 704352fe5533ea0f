package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/internal/daemon"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

// workers is how many pods the reconciler works on at once, so that one whose plugin
// hangs does not block all others. There are few, because events come first.
const workers = 4

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
	p.mu.Lock()
	news := p.newsLocked()
	p.mu.Unlock()
	var sweep <-chan time.Time
	for {
		synchronized := false
		select {
		case <-ctx.Done():
			return
		case <-news:
			synchronized = true
		case <-sweep:
		}
		if sweep == nil { // only now the configuration is known
			_, conf := p.manager()
			ticker := time.NewTicker(time.Duration(conf.Sweep))
			defer ticker.Stop()
			sweep = ticker.C
		}
		pass := p.pass(ctx, synchronized)
		if p.Observer != nil && ctx.Err() == nil {
			p.Observer(pass)
		}
	}
}

// A job is work on one sandbox.
type job struct {
	id     string
	pod    nad.Pod
	netns  string // in which to attach
	attach bool   // false means detach
}

// pass reads all records, and then looks at the pods without one.
func (p *Plugin) pass(ctx context.Context, synchronized bool) Pass {
	pass := Pass{Synchronized: synchronized}
	life, conf := p.manager()
	recorded := make(map[string]nad.Pod)
	var attach, detach []job
	for r, err := range life.Records(ctx) {
		pass.Records++
		if err != nil {
			pass.Damaged++
			recorded[r.Key.ContainerID] = nad.Pod{} // may be ours
			if r.Key == (scratch.Key{}) {           // otherwise the sweep logs it, once
				p.log().ErrorContext(ctx, "reading records failed", slog.Any("err", err))
			}
			continue
		}
		if r.Key != key(r.Key.ContainerID) {
			continue // of another program
		}
		recorded[r.Key.ContainerID] = podOf(r.Attached)
		switch j := p.judge(r); {
		case j == nil:
		case j.attach:
			attach = append(attach, *j)
		default:
			detach = append(detach, *j)
		}
	}
	p.mu.Lock()
	pods := maps.Clone(p.pods)
	p.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(pods)) {
		known := pods[id]
		if _, ok := recorded[id]; !ok && p.lacking(ctx, known) {
			if conf.AttachRunning || known.state == owed {
				attach = append(attach, job{id, podIn(known.sandbox), namespace(known.sandbox), true})
				continue
			}
			pass.Unattached++
			if synchronized {
				p.log().WarnContext(ctx, "runs without its networks", who(name(known.sandbox), id))
				p.claimed().told(known.sandbox.GetUid(), errUnattached)
			}
		}
	}
	// An interrupted ADD of a pod that runs is not stale for the sweep. What
	// cannot be detached now is, next time.
	if p.doAll(ctx, attach, &pass) {
		p.sweep(ctx, recorded, &pass)
		p.doAll(ctx, detach, &pass)
	}
	return pass
}

// sweep detaches stale attachments, whatever the runtime says: those of dead pods, and
// those that could not be detached before. After a restart, a runtime lists dead pods for a
// long time and sends no event for them. It also sends none for a pod that it has given up
// because a later plugin failed.
func (p *Plugin) sweep(ctx context.Context, pods map[string]nad.Pod, pass *Pass) {
	life, conf := p.manager()
	if p.sweeper == nil {
		p.sweeper = &lifecycle.Sweeper{
			Manager: life, Wait: p.pause, Timeout: detachedTimeout,
			Current: func(a delegate.Attachment) (netconf.Network, error) {
				if nad.ParseOrigin(a.Origin).Use == nad.Claimed {
					return a.Network, nil
				}
				return netconf.Load(os.DirFS(conf.ConfDir), a.Network.Name())
			},
		}
	}
	p.sweeper.Tell = func(s lifecycle.Swept) {
		id := s.Key.ContainerID
		p.claimed().told(pods[id].UID, s.Err)
		if s.Err == nil {
			p.forget(id)
		}
		daemon.LogSwept(ctx, p.log(), s, slog.String("pod", pods[id].String()))
	}
	swept, _ := p.sweeper.Sweep(ctx) // fails only if ctx has ended
	pass.Detached += swept.Removed
	pass.Failed += swept.Failed
	pass.Waiting += swept.Waiting
}

// judge decides what to do about a record, given what is known of the pod. It must be
// called after the record was read, because events change the pod before its record.
func (p *Plugin) judge(r lifecycle.Record) *job {
	id, pod := r.Key.ContainerID, podOf(r.Attached)
	known, ok := p.pod(id)
	switch {
	case !ok && !r.Stale():
		// The pod has stopped or was given up, and has not been detached.
		return &job{id: id, pod: pod}
	case known.state != starting && r.State == scratch.Planned && !r.NetNSGone():
		// The ADD was interrupted, but the pod was started.
		netns := namespace(known.sandbox)
		for _, a := range r.Attached {
			netns = cmp.Or(netns, a.NetNS) // not every runtime repeats it
		}
		return &job{id, pod, netns, true}
	}
	return nil
}

// lacking reports whether a pod without a record is listed by the runtime and runs without
// the networks that it selects or has claims for.
func (p *Plugin) lacking(ctx context.Context, known pod) bool {
	if known.state == starting || hostNetwork(known.sandbox) {
		return false
	}
	if asks, _ := p.asks(ctx, known.sandbox); !asks { // an ADD tells what is wrong
		return false
	}
	_, err := os.Stat(namespace(known.sandbox)) // it is removed when a pod stops
	return err == nil
}

// doAll does jobs, a few at once. If the connection to the runtime is lost, it leaves the
// rest, because the jobs may be out of date, and returns false.
func (p *Plugin) doAll(ctx context.Context, jobs []job, pass *Pass) (live bool) {
	var (
		all  sync.WaitGroup
		free = make(chan struct{}, workers)
		mu   sync.Mutex // guards pass
	)
	for _, j := range jobs {
		free <- struct{}{}
		if !p.live() {
			break
		}
		all.Go(func() {
			defer func() { <-free }()
			err := p.do(ctx, j)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, errGone): // an event came first
			case err != nil:
				pass.Failed++
				p.log().ErrorContext(ctx, "reconciling", who(j.pod.String(), j.id), slog.Any("err", err))
			case j.attach:
				pass.Attached++
			default:
				pass.Detached++
			}
		})
	}
	all.Wait()
	return p.live()
}

func (p *Plugin) do(ctx context.Context, j job) error {
	ctx, cancel := context.WithTimeout(ctx, detachedTimeout)
	defer cancel()
	if !j.attach {
		p.forget(j.id)
		return p.detach(ctx, j.id, j.pod.UID, "")
	}
	known, ok := p.pod(j.id)
	if !ok {
		return errGone
	}
	err := p.attach(ctx, known.sandbox, j.netns, nil)
	p.tried(j.id, err)
	return err
}
