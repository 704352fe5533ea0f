//go:build linux

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/metacni/metacni/netconf/nad"
)

// A follow is what changes cost, and how soon the nodes have them.
type follow struct {
	one, burst, pods span

	// Since the request was made: its answer, and the last node that has the change.
	answered, everywhere []time.Duration
	burstEverywhere      time.Duration
	podAnswered, onNode  []time.Duration
}

// follow changes definitions and pods.
func (r *rig) follow(ctx context.Context) (f follow, err error) {
	r.report.say("changing one definition after the other")
	f.one, err = r.measured(ctx, func() error {
		for range r.changes {
			begin := time.Now()
			answered, err := r.spread(ctx, 1)
			if err != nil {
				return err
			}
			f.answered, f.everywhere = append(f.answered, answered.Sub(begin)), append(f.everywhere, time.Since(begin))
		}
		return nil
	})
	if err != nil {
		return f, err
	}
	r.report.say("changing %d definitions at once", r.burst)
	f.burst, err = r.measured(ctx, func() error {
		begin := time.Now()
		_, err := r.spread(ctx, r.burst)
		f.burstEverywhere = time.Since(begin)
		return err
	})
	if err != nil {
		return f, err
	}
	r.report.say("changing one pod after the other")
	f.pods, err = r.measured(ctx, func() error {
		for i := range r.changes {
			n := r.nodes[i%len(r.nodes)]
			p := n.pods[i%len(n.pods)]
			r.done++
			begin := time.Now()
			version, err := r.touch(ctx, p, r.done)
			if err != nil {
				return err
			}
			answered := time.Now()
			if err := awaitAll(ctx, []*node{n}, hasPod(p, version)); err != nil {
				return err
			}
			f.podAnswered, f.onNode = append(f.podAnswered, answered.Sub(begin)), append(f.onNode, time.Since(begin))
		}
		return nil
	})
	return f, err
}

// spread changes n definitions and waits until all nodes have them. It returns the time of
// the last answer.
func (r *rig) spread(ctx context.Context, n int) (answered time.Time, err error) {
	r.done++
	var mu sync.Mutex
	versions := map[nad.Ref]string{}
	err = parallel(ctx, n, func(ctx context.Context, i int) error {
		version, err := r.change(ctx, i, r.done)
		mu.Lock()
		defer mu.Unlock()
		versions[definition(i)], answered = version, time.Now()
		return err
	})
	for ref, version := range versions {
		if err == nil {
			err = awaitAll(ctx, r.nodes, has(ctx, ref, version))
		}
	}
	return answered, err
}

func (r *rig) printFollow(f follow) {
	head := []string{"change", "answer, min", "median", "max", "last node, min", "median", "max"}
	row := func(name string, first, then []time.Duration) []string {
		return append(append([]string{name}, three(first)...), three(then)...)
	}
	r.report.table(fmt.Sprintf("### Changes\n\nIn milliseconds since the request was made: its answer, and until the last of %d nodes has it. "+
		"A pod is of interest to one node.", len(r.nodes)), head,
		row("a definition", f.answered, f.everywhere),
		row(fmt.Sprintf("%d definitions", r.burst), nil, []time.Duration{f.burstEverywhere}),
		row("a pod", f.podAnswered, f.onNode))
	n, changes := float64(len(r.nodes)), float64(r.changes)
	burst := max(float64(r.burst), 1)
	cost := func(name string, s span, changes, nodes float64) []string {
		return []string{
			name, figure(float64(s.requests.all())), kb(float64(s.traffic.in) / changes / nodes), kb(float64(s.traffic.in) / changes),
			figure(ms(s.apiCPU) / changes), figure(ms(s.etcdCPU) / changes), figure(ms(s.ownCPU) / changes),
		}
	}
	r.report.table("Per change, except for the requests of the nodes.",
		[]string{"change", "requests", "received, KB per node", "all nodes, KB", "kube-apiserver, CPU ms", "etcd, CPU ms", "this process, CPU ms"},
		cost("a definition", f.one, changes, n), cost("one of many at once", f.burst, burst, n), cost("a pod", f.pods, changes, 1))
}
