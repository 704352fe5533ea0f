//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"time"
)

// rest is how long a daemon has nothing to do before its memory is measured.
const rest = 3 * time.Second

// crowds starts all pods of a node at once, as after a reboot: without Kubernetes, with
// either policy for the status, and where the daemon watches the pods, because the runtime
// does not pass annotations. The daemons are stripped, as they would be released.
func (r *rig) crowds(ctx context.Context, w io.Writer, a *api) error {
	t := table{text: 1, head: []string{
		"Kubernetes", "ready, ms", "synced, ms", "memory, MB", "ADD, median, ms", "all, s",
		"written, s", "peak, MB", "at rest, MB",
	}}
	for _, c := range []struct {
		name, policy string
		keys, shim   object
	}{
		{rivals[0], rivals[0], nil, r.annotated(noop)},
		{rivals[1], rivals[1], nil, r.annotated(noop)},
		{rivals[2], rivals[2], nil, r.annotated(noop)},
		{"async, pods watched", "async", object{"annotations": "api"}, object{"delegates": r.delegates(noop, 1)}},
	} {
		row, err := r.crowded(ctx, a, c.policy, c.keys, c.shim)
		if err != nil {
			return err
		}
		t.row(append([]string{c.name}, row...)...)
	}
	return t.print(w, fmt.Sprintf("### %d pods at once\n\nTwo networks that do nothing for each pod. "+
		"written: from the first ADD until the status of each pod is written.", r.crowd))
}

// crowded measures one daemon.
func (r *rig) crowded(ctx context.Context, a *api, policy string, keys, shim object) (row []string, err error) {
	runtime.GC()
	defer func() { err = errors.Join(err, r.sweep()) }()
	pods := make([]pod, r.crowd)
	for i := range pods {
		if pods[i], err = r.member(a); err != nil {
			return nil, err
		}
	}
	d, ready, synced, err := r.rival(ctx, a, "stripped", policy, keys)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	if err := pause(ctx, rest); err != nil {
		return nil, err
	}
	before, err := d.memory("VmRSS")
	if err != nil {
		return nil, err
	}
	stdin, err := r.shim(d, "crowd", shim)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	adds, err := r.all(ctx, call{program: "multinet-shim", command: "ADD", stdin: stdin}, pods)
	if err != nil {
		return nil, err
	}
	took, written := time.Since(start), "–"
	if policy != rivals[0] {
		if err := until(ctx, "the status of each pod is written", func() (bool, error) {
			n, err := d.metric(ctx, `multinetd_status_writes_total{outcome="written"}`)
			return n == float64(len(pods)), err
		}); err != nil {
			return nil, err
		}
		written = figure(time.Since(start).Seconds())
	}
	peak, err := d.memory("VmHWM")
	if err == nil {
		err = pause(ctx, rest)
	}
	if err != nil {
		return nil, err
	}
	after, err := d.memory("VmRSS")
	if err != nil {
		return nil, err
	}
	_, err = r.all(ctx, call{program: "multinet-shim", command: "DEL", stdin: stdin}, pods)
	known := "–"
	if synced > 0 {
		known = figure(ms(synced))
	}
	return []string{
		figure(ms(ready)), known, mb(before), figure(median(of(adds, wall))), figure(took.Seconds()), written, mb(peak), mb(after),
	}, err
}

// all runs a command for all pods at once.
func (r *rig) all(ctx context.Context, c call, pods []pod) ([]sample, error) {
	samples, errs := make([]sample, len(pods)), make([]error, len(pods))
	var running sync.WaitGroup
	for i, p := range pods {
		running.Go(func() {
			one := c
			one.pod = p
			samples[i], errs[i] = r.run(ctx, one)
		})
	}
	running.Wait()
	return samples, errors.Join(slices.DeleteFunc(errs, func(err error) bool { return err == nil })...)
}
