//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"time"

	"github.com/metacni/metacni/delegate/kube"
)

// measure runs all measurements and prints them.
func measure(ctx context.Context, o options, report reporter) error {
	r, err := newRig(ctx, o, report)
	if err != nil {
		return err
	}
	defer r.close()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go r.wire.watch(watching)
	for _, nodes := range [][]*node{r.nodes[:max(o.reboot, 1)], r.nodes} {
		s, err := r.start(ctx, nodes, len(nodes) == len(r.nodes))
		if err != nil {
			return err
		}
		r.printStart(s)
	}
	lists, size, err := r.lists(ctx)
	if err != nil {
		return err
	}
	r.report.table(fmt.Sprintf("For comparison: a LIST of all definitions from the cache of the API server, the mean of %d.", manyLists),
		[]string{"compressed, KB", "kube-apiserver, CPU ms"},
		[]string{kb(float64(size)), figure(ms(lists.apiCPU) / manyLists)})
	rest, err := r.idle(ctx)
	if err != nil {
		return err
	}
	r.printIdle(rest)
	follow, err := r.follow(ctx)
	if err != nil {
		return err
	}
	r.printFollow(follow)
	for _, policy := range []kube.StatusPolicy{kube.StatusWait, kube.StatusAsync} {
		b, err := r.restart(ctx, policy)
		if err != nil {
			return err
		}
		r.printRestart(b)
	}
	for _, away := range o.outages {
		out, err := r.outage(ctx, away)
		if err != nil {
			return err
		}
		r.printOutage(out)
	}
	return nil
}

// newRig starts the cluster and creates what is in it. The caller closes the rig.
func newRig(ctx context.Context, o options, report reporter) (r *rig, err error) {
	r = &rig{options: o, report: report}
	report.say("starting the API server")
	if r.cluster, err = newCluster(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	began := time.Now()
	report.say("creating %d definitions, %d nodes and their pods", o.nads, o.views)
	definitionSize, err := r.define(ctx, o.nads)
	if err != nil {
		return nil, err
	}
	if r.nodes, err = r.join(ctx, o.views); err != nil {
		return nil, err
	}
	pods, podSize, err := r.fill(ctx, r.nodes, func(node int) int {
		if node < o.reboot {
			return o.pods
		}
		return o.others
	}, o.spaces)
	if err != nil {
		return nil, err
	}
	used, err := children()
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(report.out, "%d nodes with %d pods in %d namespaces, %d definitions; %d CPUs, %s. Created in %v. "+
		"A definition is %d bytes of JSON, a pod %d bytes of protobuf. With all of them kube-apiserver takes %s MB and etcd %s MB.\n",
		o.views, pods, o.spaces, o.nads, runtime.NumCPU(), runtime.Version(), time.Since(began).Round(time.Second),
		definitionSize, podSize, mb(float64(used[apiProcess].resident)), mb(float64(used[etcdProcess].resident)))
	return r, nil
}

// close ends the nodes and the cluster.
func (r *rig) close() {
	for _, n := range r.nodes {
		if n != nil && n.stop != nil {
			n.stop()
		}
	}
	r.Close()
}

// A start is what the start of daemons at once costs.
type start struct {
	span

	nodes      int
	watchPods  bool
	heap       uint64 // of all nodes
	goroutines int
}

// start opens nodes, again if they are open.
func (r *rig) start(ctx context.Context, nodes []*node, watchPods bool) (s start, err error) {
	s.nodes, s.watchPods = len(nodes), watchPods
	r.halt(r.nodes)
	if r.emptyHeap == 0 { // later some is left of the nodes before
		r.emptyHeap, r.emptyGoroutines = heap(), runtime.NumGoroutine()
	}
	r.report.say("starting %d daemons", len(nodes))
	s.span, err = r.measured(ctx, func() error {
		return openAll(ctx, nodes, mode{watchPods: watchPods}, &r.journal)
	})
	s.heap, s.goroutines = max(heap(), r.emptyHeap)-r.emptyHeap, runtime.NumGoroutine()-r.emptyGoroutines
	return s, err
}

// halt closes nodes that are open.
func (r *rig) halt(nodes []*node) {
	var open []*node
	for _, n := range nodes {
		if n.stop != nil {
			open = append(open, n)
		}
	}
	closeAll(open)
	for _, n := range open {
		n.stop = nil
	}
}

func (r *rig) printStart(s start) {
	what := "definitions only"
	if s.watchPods {
		what = "definitions and pods of the node"
	}
	n := float64(s.nodes)
	r.report.requests(fmt.Sprintf("### %d daemons start at once: %s", s.nodes, what), s.requests, s.nodes, "node")
	r.report.table("Per node, except for the time until the last one has synced.",
		[]string{"until synced, s", "received, KB", "sent, KB", "connections", "heap, KB", "goroutines", "CPU ms"},
		[]string{
			seconds(s.took), kb(float64(s.traffic.in) / n), kb(float64(s.traffic.out) / n), figure(float64(s.conns) / n),
			kb(float64(s.heap) / n), figure(float64(s.goroutines) / n), figure(ms(s.ownCPU) / n),
		})
	r.report.table("What that costs the servers, per node, except for the last two.",
		[]string{"kube-apiserver, CPU ms", "goroutines", "memory more, KB", "etcd, CPU ms", "kube-apiserver, MB", "etcd, MB"},
		[]string{
			figure(ms(s.apiCPU) / n), figure(s.metrics.sum("go_goroutines") / n), kb(s.metrics.sum("process_resident_memory_bytes") / n),
			figure(ms(s.etcdCPU) / n), mb(float64(s.apiMemory)), mb(float64(s.etcdMemory)),
		})
	r.printSeats(s.span)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// manyLists are the requests of lists.
const manyLists = 50

// lists makes LIST requests, which the API server answers from its cache, and returns the
// bytes of an answer.
func (r *rig) lists(ctx context.Context) (s span, size int64, err error) {
	s, err = r.measured(ctx, func() error {
		return parallel(ctx, manyLists, func(ctx context.Context, i int) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL+definitionsPath+"?resourceVersion=0", nil)
			if err != nil {
				return err
			}
			req.Header.Set("Accept-Encoding", "gzip")
			req.Header.Set("Accept", "application/json")
			resp, err := r.http.Do(req)
			if err != nil {
				return err
			}
			defer func() { _ = resp.Body.Close() }()
			n, err := io.Copy(io.Discard, resp.Body)
			if i == 0 {
				size = n
			}
			if err == nil && resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("LIST: %s", resp.Status)
			}
			return err
		})
	})
	return s, size, err
}

// idle measures while nothing happens.
func (r *rig) idle(ctx context.Context) (span, error) {
	r.report.say("nothing happens for %v", r.rest)
	return r.measured(ctx, func() error {
		select {
		case <-time.After(r.rest):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

func (r *rig) printIdle(s span) {
	r.report.requests(fmt.Sprintf("### At rest, in %v", s.took.Round(time.Second)), s.requests, len(r.nodes), "node")
	n, minutes := float64(len(r.nodes)), s.took.Minutes()
	r.report.table("Per minute.",
		[]string{"received, KB per node", "sent, KB per node", "kube-apiserver, CPU ms", "etcd, CPU ms", "this process, CPU ms", "kube-apiserver, MB", "etcd, MB"},
		[]string{
			kb(float64(s.traffic.in) / n / minutes), kb(float64(s.traffic.out) / n / minutes),
			figure(ms(s.apiCPU) / minutes), figure(ms(s.etcdCPU) / minutes), figure(ms(s.ownCPU) / minutes), mb(float64(s.apiMemory)), mb(float64(s.etcdMemory)),
		})
}
