package queue

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/durable"
)

type doer = func(context.Context, wire.Request) error

func (q queue) replay(ctx context.Context, width int, do doer) (int, error) {
	dir, err := durable.OpenDir(q.dir, q.hook)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, q.fail("replay", "", err)
	}
	defer dir.Close()
	l, err := q.open(dir)
	if err != nil {
		return 0, q.fail("replay", "", err)
	}
	defer l.release()
	wait := func() (bool, error) { return false, nil }
	if _, err := l.acquire(ctx, exclusive, wait); err != nil {
		return 0, err
	}
	names, err := dir.Names()
	if err != nil {
		return 0, q.fail("replay", "", err)
	}
	var entries, damaged []string
	for _, name := range names {
		switch {
		case isEntry(name):
			entries = append(entries, name)
		case isDamaged(name):
			damaged = append(damaged, name)
		case durable.IsTemp(name):
			_ = dir.Remove(name) // its writer does not live: we have the lock
		}
	}
	outcomes := each(ctx, width, entries, func(name string) outcome { return one(ctx, dir, name, do) })

	left := len(entries)
	var errs []error
	for i, o := range outcomes {
		name := entries[i]
		err := o.err
		if o.damaged {
			var kept bool
			// Not in one, where they would not know of each other's.
			if kept, err = setAside(dir, name, err, len(damaged)); kept {
				damaged = append(damaged, damagedName(name))
			}
		}
		if o.damaged || o.err == nil {
			left--
		}
		errs = append(errs, q.fail("replay", name, err))
	}
	if n := len(entries) - len(outcomes); n > 0 {
		errs = append(errs, q.fail("replay", "", fmt.Errorf("%d not begun: %w", n, ended(ctx))))
	}
	if left < len(entries) {
		// Once for all: what a loss of power brings back is done again.
		errs = append(errs, q.fail("replay", "", dir.Sync()))
	}
	if len(damaged) > 0 {
		slices.Sort(damaged)
		errs = append(errs, q.fail("replay", "", fmt.Errorf("%w, remove when looked at: %q", ErrDamaged, damaged)))
	}
	return left, errors.Join(errs...)
}

// An outcome is what became of one file.
type outcome struct {
	damaged bool // cannot be read back
	err     error
}

// each calls f for the names in their order, width at a time, until ctx ends.
// It returns one outcome for each call there was.
func each(ctx context.Context, width int, names []string, f func(string) outcome) []outcome {
	all := make([]outcome, len(names))
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(max(width, 1), len(names)) {
		wg.Go(func() {
			for i := range next {
				all[i] = f(names[i])
			}
		})
	}
	begun := 0
	for begun < len(names) && ctx.Err() == nil {
		select {
		case next <- begun:
			begun++
		case <-ctx.Done():
		}
	}
	close(next)
	wg.Wait()
	return all[:begun]
}

// one does what the file says, and removes it.
func one(ctx context.Context, dir *durable.Dir, name string, do doer) outcome {
	data, _, err := dir.ReadFile(name, maxFile)
	if err != nil {
		// What cannot be read now, for want of memory or of a working disk, may
		// be readable later.
		never := errors.Is(err, durable.ErrNotRegular) || errors.Is(err, durable.ErrTooLarge)
		return outcome{never, err}
	}
	r, err := decode(data)
	if err != nil {
		return outcome{true, err}
	}
	if err := do(ctx, r); err != nil {
		return outcome{false, fmt.Errorf("container %q, interface %q: %w", r.Env["CNI_CONTAINERID"], r.Env["CNI_IFNAME"], err)}
	}
	return outcome{false, dir.Remove(name)}
}

// setAside gives the damaged file another name, or removes it when there are
// too many others, and says so beside why it is damaged.
func setAside(dir *durable.Dir, name string, why error, others int) (kept bool, err error) {
	if others >= maxDamaged {
		return false, errors.Join(fmt.Errorf("%w: %w; removed, as %d others are kept", ErrDamaged, why, others), dir.Remove(name))
	}
	if err := dir.Rename(name, damagedName(name)); err != nil {
		return false, errors.Join(fmt.Errorf("%w: %w", ErrDamaged, why), err)
	}
	return true, fmt.Errorf("%w: %w", ErrDamaged, why)
}
