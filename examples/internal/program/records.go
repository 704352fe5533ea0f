package program

import (
	"context"
	"errors"
	"iter"
	"slices"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

// A Record is a record of an attachment, and the directory that has it.
type Record struct {
	lifecycle.AddRecord
	Dir string
}

// OfPod returns the records of all sandboxes of the pod with this UID, for showing. It passes over
// records that cannot be read, which must not affect other pods: use All to decide what is released.
func OfPod(ctx context.Context, uid string, dirs ...string) (all []Record, err error) {
	for r, err := range Records(ctx, dirs...) {
		switch {
		case err != nil && r.Key == (scratch.Key{}): // the directory
			return nil, err
		case err == nil && slices.ContainsFunc(slices.Concat(r.Attached, r.Leftovers), func(a delegate.Attached) bool { return nad.PodOf(a.Args).UID == uid }):
			all = append(all, r)
		}
	}
	return all, nil
}

// All returns the records in directories. With an error that names those that cannot be read, it
// returns the others.
func All(ctx context.Context, dirs ...string) (all []Record, err error) {
	var errs []error
	for r, err := range Records(ctx, dirs...) {
		if err == nil {
			all = append(all, r)
		}
		errs = append(errs, err)
	}
	return all, errors.Join(errs...)
}

// Records yields the records in directories. An error about a record comes with its key, and one
// about a directory without.
func Records(ctx context.Context, dirs ...string) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for _, dir := range dirs {
			for r, err := range (&lifecycle.Manager{Dir: dir}).Records(ctx) {
				if !yield(Record{r, dir}, err) {
					return
				}
			}
		}
	}
}
