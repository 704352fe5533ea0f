//go:build linux

package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// An outage is what happens when the API server has gone, and comes back.
type outage struct {
	span // from the end of the API server until all nodes follow again

	away   time.Duration // from its end until it answers the first node
	synced time.Duration // from then until the last watch began
	back   time.Time     // when it answers the first node
}

// watches accepts requests that begin to follow the cluster again.
func watches(e entry) bool {
	return (e.Verb == "watch" || e.Verb == "list") && e.Code == http.StatusOK
}

// outage kills the API server and starts it again.
func (r *rig) outage(ctx context.Context, away time.Duration) (o outage, err error) {
	r.report.say("an outage of at least %v", away)
	m, err := r.begin(ctx)
	if err != nil {
		return o, err
	}
	r.Stop()
	begin := time.Now()
	select {
	case <-time.After(away):
	case <-ctx.Done():
		return o, context.Cause(ctx)
	}
	if err := r.Restart(); err != nil { //nolint:contextcheck // it has a limit of its own
		return o, err
	}
	r.http.CloseIdleConnections()
	if _, err := r.spread(ctx, 1); err != nil {
		return o, err
	}
	if err := r.spreadPods(ctx); err != nil {
		return o, err
	}
	if o.span, err = r.end(ctx, m); err != nil {
		return o, err
	}
	if i := slices.IndexFunc(o.entries, watches); i >= 0 {
		o.back = o.entries[i].at
	}
	o.away, o.synced = o.back.Sub(begin), last(o.entries, watches).Sub(o.back)
	return o, nil
}

// spreadPods changes a pod of each node and waits until all nodes have it.
func (r *rig) spreadPods(ctx context.Context) error {
	r.done++
	return parallel(ctx, len(r.nodes), func(ctx context.Context, i int) error {
		p := r.nodes[i].pods[0]
		version, err := r.touch(ctx, p, r.done)
		if err != nil {
			return err
		}
		return awaitAll(ctx, r.nodes[i:i+1], hasPod(p, version))
	})
}

func (r *rig) printOutage(o outage) {
	n := float64(len(r.nodes))
	r.report.requests(fmt.Sprintf("### An outage of %s s", seconds(o.away)), o.requests, len(r.nodes), "node")
	r.report.table("Until the last watch begins.",
		[]string{"since the first answer, s", "received, KB per node", "kube-apiserver, CPU s", "this process, CPU s"},
		[]string{seconds(o.synced), kb(float64(o.traffic.in) / n), seconds(o.apiCPU), seconds(o.ownCPU)})
	r.printSeats(o.span)
	var rows [][]string
	for _, b := range o.buckets() {
		rows = append(rows, []string{b.name, fmt.Sprint(b.asked), fmt.Sprint(b.refused), fmt.Sprint(b.answered)})
	}
	r.report.table("Requests by the second since the first answer.", []string{"second", "all", "no answer", "answered"}, rows...)
}

// A bucket is what happened in a second.
type bucket struct {
	name                     string
	asked, refused, answered int
}

// buckets counts the requests by the second since the first answer.
func (o outage) buckets() (all []bucket) {
	for from := -3; from < 40; from++ {
		b := bucket{name: fmt.Sprintf("%d to %d", from, from+1)}
		for _, e := range o.entries {
			since := e.at.Sub(o.back)
			if since < time.Duration(from)*time.Second || since >= time.Duration(from+1)*time.Second {
				continue
			}
			b.asked++
			switch e.Code {
			case 0:
				b.refused++
			case http.StatusOK:
				b.answered++
			}
		}
		if b.asked > 0 {
			all = append(all, b)
		}
	}
	return all
}
