package cluster

import (
	"context"
	"iter"
	"slices"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/scratch"
)

// A recordedAt is a record, and the directory that has it.
type recordedAt struct {
	lifecycle.Record
	dir string
}

// records returns all records that can be read: sweeps report the others, which must not keep
// other pods from ending. The error is that of a directory which cannot be read.
func (c *Cluster) records(ctx context.Context) iter.Seq2[recordedAt, error] {
	return func(yield func(recordedAt, error) bool) {
		for _, dir := range c.plugin.Dirs() {
			for r, err := range (&lifecycle.Manager{Dir: dir}).Records(ctx) {
				unreadable := err != nil && r.Key != scratch.Key{}
				if !unreadable && !yield(recordedAt{r, dir}, err) {
					return
				}
			}
		}
	}
}

// recordsOfPod returns the records of all containers of the pod with this UID.
func (c *Cluster) recordsOfPod(ctx context.Context, uid string) (all []recordedAt, err error) {
	for r, err := range c.records(ctx) {
		switch {
		case err != nil:
			return nil, err
		case len(r.Attached) > 0 && multinet.PodOf(r.Record).UID == uid:
			all = append(all, r)
		}
	}
	return all, nil
}

// recordsOf returns the records of a container, and whether one of them says that it is
// attached.
func (c *Cluster) recordsOf(ctx context.Context, id string) (all []recordedAt, attached bool, err error) {
	for _, dir := range c.plugin.Dirs() {
		records, err := (&lifecycle.Manager{Dir: dir}).Container(ctx, id)
		if err != nil {
			return nil, false, err
		}
		for _, r := range records {
			all = append(all, recordedAt{r, dir})
			attached = attached || r.State.Attached()
		}
	}
	return all, attached, nil
}

// container returns the records of an attached container, oldest first.
func (c *Cluster) container(ctx context.Context, id string) ([]recordedAt, error) {
	all, _, err := c.recordsOf(ctx, id)
	all = slices.DeleteFunc(all, func(r recordedAt) bool { return !r.State.Attached() })
	slices.SortStableFunc(all, func(a, b recordedAt) int { return a.Created.Compare(b.Created) })
	return all, err
}
