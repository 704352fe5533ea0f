package daemon

import (
	"context"
	"iter"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

// A Record is a record of an attachment, and the directory that has it.
type Record struct {
	lifecycle.Record
	Dir string
}

// OfPod returns the records of all sandboxes of the pod with this UID.
func OfPod(ctx context.Context, uid string, dirs ...string) (all []Record, err error) {
	for r, err := range Records(ctx, dirs...) {
		switch {
		case err != nil:
			return nil, err
		case len(r.Attached) > 0 && nad.PodOf(r.Attached[0].Args).UID == uid:
			all = append(all, r)
		}
	}
	return all, nil
}

// Records returns the records in directories. It skips records that cannot be read, which
// sweeps report: they must not affect other containers. An error is about a directory.
func Records(ctx context.Context, dirs ...string) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for _, dir := range dirs {
			for r, err := range (&lifecycle.Manager{Dir: dir}).Records(ctx) {
				unreadable := err != nil && r.Key != scratch.Key{}
				if !unreadable && !yield(Record{r, dir}, err) {
					return
				}
			}
		}
	}
}
