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
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// workers is how many pods the reconciler works on at once: one whose plugin
// hangs must not keep all others waiting, and events come first.
const workers = 4

// A Pass is what the reconciler found and did, in one look at all records.
type Pass struct {
	Synchronized bool // the first since the runtime has listed its pods
	Records      int  // that there were
	Damaged      int  // among them, which nothing can be done about
	Attached     int  // pods
	Detached     int  // pods
	Failed       int  // pods that were not attached or detached, to be tried again
	Waiting      int  // pods that are left for another pass, after failures or because there are many
	Unattached   int  // pods that run without the networks they select, and are left so
}

// Notable reports whether there is more to say of p than that all is well.
func (p Pass) Notable() bool {
	return p.Synchronized || p.Damaged+p.Attached+p.Detached+p.Failed+p.Unattached > 0
}

// reconcile makes up for events that were lost, until ctx ends: after each
// Synchronize, and now and then.
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
		if sweep == nil { // the configuration is known by now
			_, conf := p.manager()
			ticker := time.NewTicker(conf.Sweep.Duration)
			defer ticker.Stop()
			sweep = ticker.C
		}
		pass := p.pass(ctx, synchronized)
		if p.Observer != nil && ctx.Err() == nil {
			p.Observer(pass)
		}
	}
}

// A job is what there is to do for one sandbox.
type job struct {
	id     string
	pod    string // its name
	netns  string // in which to attach
	attach bool   // or else detach
}

// pass looks at all records, and then at the pods without one.
func (p *Plugin) pass(ctx context.Context, synchronized bool) Pass {
	pass := Pass{Synchronized: synchronized}
	life, conf := p.manager()
	recorded := make(map[string]string) // the name of the pod
	var attach, detach []job
	for r, err := range life.Records(ctx) {
		pass.Records++
		if err != nil {
			pass.Damaged++
			recorded[r.Key.ContainerID] = "" // perhaps ours
			if r.Key == (scratch.Key{}) {    // else the sweep tells, once
				p.log().ErrorContext(ctx, "reading the records", slog.Any("err", err))
			}
			continue
		}
		if r.Key != key(r.Key.ContainerID) {
			continue // somebody else's
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
		if _, ok := recorded[id]; !ok && p.lacking(known) {
			if conf.AttachRunning || known.owed {
				attach = append(attach, job{id, name(known.sandbox), namespace(known.sandbox), true})
				continue
			}
			pass.Unattached++
			if synchronized {
				p.log().WarnContext(ctx, "runs without its networks", who(name(known.sandbox), id))
			}
		}
	}
	// What was interrupted of a pod that runs is not stale for the sweep, and
	// what cannot be detached is, next time.
	if p.doAll(ctx, attach, &pass) {
		p.sweep(ctx, recorded, &pass)
		p.doAll(ctx, detach, &pass)
	}
	return pass
}

// sweep detaches what is stale, whatever the runtime says: pods that are dead,
// and what could not be detached before. A runtime that was started again, or the
// node with it, lists dead pods for long, and does not tell of their end; nor
// does it tell of a pod that it gave up because a plugin after us failed.
func (p *Plugin) sweep(ctx context.Context, pods map[string]string, pass *Pass) {
	life, conf := p.manager()
	if p.sweeper == nil {
		p.sweeper = &lifecycle.Sweeper{
			Manager: life, Wait: p.pause, Timeout: detachedTimeout,
			Current: func(name string) (netconf.Network, error) { return netconf.Load(os.DirFS(conf.ConfDir), name) },
		}
	}
	p.sweeper.Tell = func(s lifecycle.Swept) {
		id := s.Key.ContainerID
		if s.Err == nil {
			p.forget(id)
			p.log().InfoContext(ctx, "detached", who(pods[id], id))
			return
		}
		attrs := []slog.Attr{who(pods[id], id), slog.Any("err", s.Err)}
		if !s.At.IsZero() { // it will be tried
			attrs = append(attrs, slog.Time("next", s.At))
		}
		p.log().LogAttrs(ctx, slog.LevelError, "still attached", attrs...)
	}
	swept, _ := p.sweeper.Sweep(ctx) // its error is that ctx has ended
	pass.Detached += swept.Removed
	pass.Failed += swept.Failed
	pass.Waiting += swept.Waiting
}

// judge says what is to be done about a record because of what the runtime says.
// It must be asked after the record was read: events change what is known of a
// pod before they change its record.
func (p *Plugin) judge(r lifecycle.Record) *job {
	id, pod := r.Key.ContainerID, podOf(r.Attached)
	known, ok := p.pod(id)
	switch {
	case !ok && !r.Stale():
		// Stopped, or given up, and not detached since.
		return &job{id: id, pod: pod}
	case known.listed && r.State == scratch.Planned && !r.NetNSGone():
		// Interrupted, and started all the same.
		netns := namespace(known.sandbox)
		for _, a := range r.Attached {
			netns = cmp.Or(netns, a.NetNS) // not every runtime says it again
		}
		return &job{id, pod, netns, true}
	}
	return nil
}

// lacking reports whether a pod that the runtime has listed runs without the
// networks it selects, when it has no record.
func (p *Plugin) lacking(known pod) bool {
	selected, err := selections(known.sandbox)
	if !known.listed || err != nil || len(selected) == 0 || hostNetwork(known.sandbox) {
		return false
	}
	_, err = os.Stat(namespace(known.sandbox)) // which goes when a pod stops
	return err == nil
}

// doAll does jobs, a few at once. It reports whether the runtime is connected
// still: what it has said before is out of date otherwise, and the rest is left.
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
			case errors.Is(err, errGone): // an event was faster
			case err != nil:
				pass.Failed++
				p.log().ErrorContext(ctx, "reconciling", who(j.pod, j.id), slog.Any("err", err))
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
		return p.detach(ctx, j.id, "")
	}
	known, ok := p.pod(j.id)
	if !ok {
		return errGone
	}
	err := p.attach(ctx, known.sandbox, j.netns, func(context.Context, []delegate.Attached) error { return nil })
	p.owe(j.id, err != nil)
	return err
}
