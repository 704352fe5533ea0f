package scratch

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/metacni/metacni/internal/cause"
	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/flock"
	"github.com/metacni/metacni/internal/records"
)

// A Lock is a held lock of one container, from [Store.Lock]. Goroutines may call
// its methods at the same time. Without Unlock, the lock is held until the process
// and every child that has [Lock.File] have ended.
type Lock struct {
	dir, container string

	root *durable.Dir
	name string // of the file in root
	id   durable.ID

	interrupted bool

	mu sync.Mutex // guards what follows, and is held while a method works
	fd int        // not an *os.File, which the garbage collector would close; -1 once released
	// known holds records that are there and whole: how large notes may make their files, by
	// the names of these.
	known map[string]int64
}

// File returns a new descriptor of the lock's file for child processes. Use it to
// keep the lock until the last descendant exits: a child that has the file open
// keeps the lock when this process dies. [Lock.Unlock] releases it all the same.
// The caller closes the file. File returns nil after Unlock, and when the system
// has no descriptor left.
func (l *Lock) File() *os.File {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd < 0 {
		return nil
	}
	return durable.Dup(l.fd, l.root.Path(l.name))
}

// Interrupted reports whether the last process that had the lock has died while a program ran that
// it had started with [Lock.File]. It is false if that is not known.
func (l *Lock) Interrupted() bool { return l.interrupted }

// Unlock releases the lock, also for children that have inherited its file, and
// removes the file when the container has no record left. Later calls do nothing
// and return nil. When Unlock fails, the lock is released all the same, and the
// file may be left.
func (l *Lock) Unlock() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd < 0 {
		return nil
	}
	err := l.tidy()
	// Closing alone would leave the lock to whoever has inherited the file.
	durable.Step("unflock", l.name)
	err = errors.Join(err, l.failed(flock.Unlock(l.fd)))
	durable.Close(l.fd)
	l.root.Close()
	l.fd = -1
	return fail("unlock", Key{ContainerID: l.container}, err)
}

// tidy removes the lock's file, and what a Put that was killed has left, when the container has no
// record.
func (l *Lock) tidy() error {
	if len(l.known) > 0 {
		return nil
	}
	names, err := l.root.NamesWith(records.Part(l.container)+"@", durable.TempPrefix+records.Part(l.container)+"@")
	if err != nil || slices.ContainsFunc(names, func(name string) bool { _, ok := parseName(name); return ok }) {
		return err
	}
	// Only while we hold the lock is the file's name certainly ours to give up.
	now, err := l.root.Stat(l.name)
	if err != nil || now.ID != l.id {
		return gone(err)
	}
	for _, name := range names {
		record := strings.TrimPrefix(name, durable.TempPrefix)
		if _, ok := parseName(record); ok {
			err = errors.Join(err, l.remove(record))
		}
	}
	if err != nil {
		return err
	}
	return gone(l.root.Remove(l.name))
}

// using calls do, which does op, while l cannot be released. It fails unless check accepts k, and l
// is held, for the container of k in the store in dir.
func (l *Lock) using(op, dir string, k Key, check func(Key) error, do func() error) error {
	if err := check(k); err != nil {
		return fail(op, k, err)
	}
	if l == nil {
		return fail(op, k, errNotHeld)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd < 0 || l.dir != dir || !records.SamePart(l.container, k.ContainerID) {
		return fail(op, k, errNotHeld)
	}
	return fail(op, k, do())
}

// take waits for the lock.
func (l *Lock) take(ctx context.Context, limit time.Duration) error {
	if err := cause.Of(ctx); err != nil {
		return err
	}
	first := true
	return flock.Wait(ctx, limit, func() (bool, error) {
		defer func() { first = false }()
		return l.try(first)
	})
}

// try takes the lock if it is free. It opens the file again every time, because
// whoever releases the lock may remove the file.
func (l *Lock) try(first bool) (held bool, err error) {
	fd, id, err := l.root.OpenLock(l.name)
	if err != nil {
		return false, err
	}
	defer func() {
		if !held {
			durable.Close(fd)
		}
	}()
	durable.Step("flock", l.name)
	free, err := flock.Try(fd, true)
	if err != nil {
		return false, l.failed(err)
	}
	if !free {
		if first && flock.Inherited(fd) {
			return false, flock.ErrNested
		}
		return false, nil
	}
	claimed, interrupted, err := flock.Claim(fd)
	if !claimed || err != nil {
		return false, l.failed(err)
	}
	defer flock.Settle(fd)
	// Between open and flock the last holder may have removed the file, or somebody else for the
	// sake of a dead holder.
	now, err := l.root.Stat(l.name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && now.ID != id {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	l.fd, l.id, l.interrupted = fd, id, interrupted
	return true, nil
}

func (l *Lock) failed(err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: "flock", Path: filepath.Join(l.dir, l.name), Err: err}
}
