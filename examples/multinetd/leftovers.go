package main

import (
	"context"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/scratch"
)

// leftovers returns the records that have something left of an ADD that never succeeded.
// It skips records that cannot be read; sweeps report these.
func (d *daemon) leftovers(ctx context.Context) (all []lifecycle.Record) {
	for _, dir := range d.configs.dirs() {
		for r, err := range (&lifecycle.Manager{Dir: dir}).Records(ctx) {
			if err == nil && (r.State == scratch.Leftover || len(r.Leftovers) > 0) {
				all = append(all, r)
			}
		}
	}
	return all
}

// tellLeftover tells users of the cluster of a leftover that a sweep could not remove. A
// [lifecycle.Sweeper] says that once for each reason.
func (d *daemon) tellLeftover(ctx context.Context, dir string, swept lifecycle.Swept) {
	if d.cluster == nil || swept.Err == nil {
		return
	}
	rs, _ := (&lifecycle.Manager{Dir: dir}).Container(ctx, swept.Key.ContainerID) // sweeps report what cannot be read
	for _, r := range rs {
		if r.Key == swept.Key && r.State == scratch.Leftover {
			d.cluster.Leftover(r, swept.Err)
		}
	}
}
