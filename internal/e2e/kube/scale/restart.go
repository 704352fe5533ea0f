//go:build linux

package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/metacni/metacni/delegate/kube"
)

// A restart is what happens when nodes are started at once, and all their pods.
type restart struct {
	span

	policy   kube.StatusPolicy
	nodes    int
	synced   time.Duration   // until the last node has
	added    []time.Duration // that each ADD took
	repeated int             // ADDs that failed
	written  time.Duration   // until the last status is
	told     time.Duration   // until the last Event is
	stats    kube.StatusStats
	dropped  uint64    // Events
	inflight []float64 // requests that the API server was serving, each second
}

// restart closes nodes and opens them again. Their pods are added at once.
func (r *rig) restart(ctx context.Context, policy kube.StatusPolicy) (b restart, err error) {
	nodes := r.nodes[:r.reboot]
	r.halt(nodes)
	r.runs++
	b.policy, b.nodes = policy, len(nodes)
	r.report.say("starting %d nodes with their pods, status policy %s", len(nodes), policy)
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	var others sync.WaitGroup
	others.Go(func() { b.inflight = r.inflight(watching) })
	var o outcome
	b.span, err = r.measured(ctx, func() error {
		begin := time.Now()
		for _, n := range nodes {
			if err := n.open(ctx, mode{watchPods: true, policy: policy, run: r.runs}, &r.journal); err != nil {
				return err
			}
		}
		var adding sync.WaitGroup
		for _, n := range nodes {
			adding.Go(func() { n.add(ctx, &o) })
		}
		if err := awaitAll(ctx, nodes, (*node).synced); err != nil {
			return err
		}
		b.synced = time.Since(begin)
		adding.Wait()
		if err := awaitAll(ctx, nodes, (*node).settled); err != nil {
			return err
		}
		all := r.journal.since(0)
		b.written = last(all, is("patch", "pods/status")).Sub(begin)
		b.told = last(all, is("create", "events")).Sub(begin)
		return nil
	})
	cancel()
	others.Wait()
	for _, n := range nodes {
		s := n.writer.Stats()
		b.stats.Written += s.Written
		b.stats.Failed += s.Failed
		b.stats.Refused += s.Refused
		b.stats.Gone += s.Gone
		b.stats.Overwritten += s.Overwritten
		b.dropped += n.events.Stats().Dropped
	}
	b.added, b.repeated = o.took, int(o.failed.Load())
	return b, err
}

func is(verb, resource string) func(entry) bool {
	return func(e entry) bool {
		return e.Verb == verb && e.Resource == resource && e.Code < http.StatusMultipleChoices
	}
}

// inflight asks the API server each second how many requests it is serving, until ctx
// ends.
func (r *rig) inflight(ctx context.Context) (all []float64) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return all
		case <-tick.C:
			if m, err := r.metrics(ctx); err == nil {
				all = append(all, m.sum("apiserver_current_inflight_requests"))
			}
		}
	}
}

func (r *rig) printRestart(b restart) {
	pods := b.nodes * r.pods
	r.report.requests(fmt.Sprintf("### %d nodes start at once, with %d pods each: status policy %s", b.nodes, r.pods, b.policy), b.requests, pods, "pod")
	r.report.table("Time, in seconds since the start.",
		[]string{"last synced", "ADD, min, ms", "median", "max", "ADDs repeated", "last status", "last Event", "statuses per second", "failed", "Events dropped"},
		slices.Concat([]string{seconds(b.synced)}, three(b.added), []string{
			fmt.Sprint(b.repeated), seconds(b.written), seconds(b.told), figure(float64(b.stats.Written) / b.written.Seconds()),
			fmt.Sprint(b.stats.Failed + b.stats.Refused), fmt.Sprint(b.dropped),
		}))
	r.printServer(b.span)
	r.printSeats(b.span)
	if len(b.inflight) > 0 {
		r.report.table("", []string{"requests in flight", "figure"}, []string{"each second, max", figure(slices.Max(b.inflight))})
	}
}

// printSeats prints how the API server shared its time out among the requests of the nodes.
func (r *rig) printSeats(s span) {
	const level = `priority_level="workload-high"`
	h := s.metrics.spread("apiserver_flowcontrol_request_wait_duration_seconds", level)
	seats := s.metrics.spread("apiserver_flowcontrol_work_estimated_seats", level)
	r.report.table("Priority level workload-high of the API server.",
		[]string{"requests", "seats, mean", "waiting, mean, ms", "99 % below, ms", "rejected (429)", "seats of the level"},
		[]string{
			figure(h.n), figure(seats.mean), figure(h.mean * 1e3), figure(h.p99 * 1e3), figure(s.metrics.sum("apiserver_flowcontrol_rejected_requests_total", level)),
			figure(s.now.sum("apiserver_flowcontrol_nominal_limit_seats", level)),
		})
}

// printServer prints what the API server was doing.
func (r *rig) printServer(s span) {
	row := func(name string, h spread) []string {
		return []string{name, figure(h.n), figure(h.mean * 1e3), figure(h.p99 * 1e3)}
	}
	const (
		duration = "apiserver_request_duration_seconds"
		etcd     = "etcd_request_duration_seconds"
	)
	r.report.table("The API server by its own account.", []string{"what", "number", "mean, ms", "99 % below, ms"},
		row("PATCH pods/status", s.metrics.spread(duration, `verb="PATCH"`, `subresource="status"`, `resource="pods"`)),
		row("POST events", s.metrics.spread(duration, `verb="POST"`, `resource="events"`)),
		row("LIST", s.metrics.spread(duration, `verb="LIST"`)),
		row("etcd", s.metrics.spread(etcd)),
		[]string{"watchers terminated", figure(s.metrics.sum("apiserver_terminated_watchers_total")), "", ""},
		[]string{"CPU of kube-apiserver, s", seconds(s.apiCPU), "", ""},
		[]string{"CPU of etcd, s", seconds(s.etcdCPU), "", ""},
		[]string{"CPU of this process, s", seconds(s.ownCPU), "", ""},
		[]string{"kube-apiserver, MB", mb(float64(s.apiMemory)), "", ""},
		[]string{"etcd, MB", mb(float64(s.etcdMemory)), "", ""},
		[]string{"received by the nodes, MB", mb(float64(s.traffic.in)), "", ""},
	)
}
