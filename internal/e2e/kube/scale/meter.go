//go:build linux

package main

import (
	"context"
	"time"
)

// A span is what happened between two moments.
type span struct {
	took     time.Duration
	entries  []entry
	requests tally
	traffic  traffic
	conns    int     // that are open at the end
	metrics  metrics // what has been added
	now      metrics // at the end

	apiCPU, etcdCPU, ownCPU time.Duration
	apiMemory, etcdMemory   uint64 // at the end
}

// A moment is where a span begins.
type moment struct {
	at      time.Time
	entries int
	traffic traffic
	metrics metrics
	usage   map[string]usage
	own     usage
}

// The names of the processes.
const (
	apiProcess  = "kube-apiserver"
	etcdProcess = "server"
)

// A rig is what the measurements share.
type rig struct {
	options
	*cluster
	report  reporter
	journal journal
	nodes   []*node
	runs    int // of statuses
	done    int // changes

	emptyHeap       uint64 // without nodes
	emptyGoroutines int
}

// begin begins a span.
func (r *rig) begin(ctx context.Context) (m moment, err error) {
	if m.metrics, err = r.metrics(ctx); err != nil {
		return m, err
	}
	if m.usage, err = children(); err != nil {
		return m, err
	}
	if m.own, err = self(); err != nil {
		return m, err
	}
	if m.traffic, _, err = r.wire.look(); err != nil {
		return m, err
	}
	m.entries, m.at = r.journal.len(), time.Now()
	return m, nil
}

// end ends a span. If the API server was started in it, the metrics and the processor time
// are those since then.
func (r *rig) end(ctx context.Context, m moment) (s span, err error) {
	s.took = time.Since(m.at)
	s.entries = r.journal.since(m.entries)
	s.requests = tallyOf(s.entries)
	now, conns, err := r.wire.look()
	if err != nil {
		return s, err
	}
	s.traffic, s.conns = now.minus(m.traffic), conns
	used, err := children()
	if err != nil {
		return s, err
	}
	own, err := self()
	if err != nil {
		return s, err
	}
	api, etcd := used[apiProcess], used[etcdProcess]
	s.apiCPU, s.etcdCPU, s.ownCPU = api.cpu-m.usage[apiProcess].cpu, etcd.cpu-m.usage[etcdProcess].cpu, own.cpu-m.own.cpu
	s.apiMemory, s.etcdMemory = api.resident, etcd.resident
	if s.now, err = r.metrics(ctx); err != nil {
		return s, err
	}
	s.metrics = s.now.minus(m.metrics)
	if s.apiCPU < 0 {
		s.apiCPU, s.metrics = api.cpu, s.now
	}
	return s, nil
}

// measured runs do as a span.
func (r *rig) measured(ctx context.Context, do func() error) (span, error) {
	m, err := r.begin(ctx)
	if err != nil {
		return span{}, err
	}
	if err := do(); err != nil {
		return span{}, err
	}
	return r.end(ctx, m)
}
