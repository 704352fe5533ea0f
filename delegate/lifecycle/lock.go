package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/cause"
	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/internal/flock"
	"github.com/metacni/metacni/internal/records"
	"github.com/metacni/metacni/scratch"
)

// locked calls do while op holds the lock of k's container.
func (m *Manager) locked(ctx context.Context, op string, k scratch.Key, do func(context.Context, *scratch.Lock) error) error {
	ctx = m.during(ctx, op, k)
	waited := m.begins(ctx, delegate.StageLock)
	l, err := m.lock(ctx, k.ContainerID)
	waited(err)
	if err != nil {
		return err
	}
	return m.holding(ctx, k.ContainerID, l, do)
}

// holding calls do, and then releases the lock l of container id. Plugins that do
// runs with its context inherit the lock: a plugin that outlives this process
// keeps it.
func (m *Manager) holding(ctx context.Context, id string, l *scratch.Lock, do func(context.Context, *scratch.Lock) error) error {
	defer func() {
		// It changes nothing of what was done, and the lock ends with this process.
		if err := l.Unlock(); err != nil {
			m.debug(ctx, "unlock", slog.String("container", id), slog.Any("err", err))
		}
	}()
	return handing(ctx, l.File(), func(ctx context.Context) error { return do(ctx, l) })
}

// handing calls do with a context with which plugins inherit lockFile, the file of a lock that this
// process holds, and are noted in it, and closes the file. Plugins must not run without the lock: if
// there is no file, because no descriptor was left, handing fails.
func handing(ctx context.Context, lockFile *os.File, do func(context.Context) error) error {
	if lockFile == nil {
		return types.NewError(types.ErrTryAgainLater, "no file descriptor is left to hand the lock to plugins", "")
	}
	defer lockFile.Close() //nolint:errcheck // nobody reads a note that was not written
	return do(flock.WithNotes(delegate.WithOptions(ctx, delegate.ProcessOptions{Files: []*os.File{lockFile}}), lockFile))
}

// errNegative refuses a negative LockTimeout.
var errNegative = fault.New(types.ErrInvalidNetworkConfig, "the LockTimeout is negative")

func (m *Manager) lock(ctx context.Context, id string) (*scratch.Lock, error) {
	take := func(limit time.Duration) (*scratch.Lock, error) { return m.lockWithin(ctx, limit, id) }
	return locking(ctx, m, "another operation on the container", take, id)
}

// locking calls take, which takes the lock of container id within a time, or another one with it.
// When the lock is not free by then, locking ends what a dead holder has left. Otherwise the
// holder has not ended.
func locking[L any](ctx context.Context, m *Manager, holder string, take func(limit time.Duration) (L, error), id string) (L, error) {
	var none L
	if m.LockTimeout < 0 {
		return none, errNegative
	}
	late := func(err error) bool {
		return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	}
	l, err := take(m.lockTimeout())
	if !late(err) {
		return l, err
	}
	ended, endErr := m.endOrphans(ctx, id)
	if ended {
		l, err = take(orphanTimeout)
	}
	if !late(err) {
		return l, err
	}
	return none, errors.Join(fmt.Errorf("%s has not ended: %w", holder, err), endErr)
}

func (m *Manager) lockWithin(ctx context.Context, limit time.Duration, id string) (*scratch.Lock, error) {
	return scratch.Store[record]{Dir: m.Dir, LockTimeout: limit}.Lock(ctx, id)
}

// endOrphans ends what a dead holder of the lock of container id has left. It reports whether the
// lock is free.
func (m *Manager) endOrphans(ctx context.Context, id string) (bool, error) {
	return flock.End(ctx, filepath.Join(m.Dir, records.LockName(id)), orphanTimeout)
}

// A dirLock is the lock of the directory of the records. Its holder has locked the directory
// itself, which ends with the process. An exclusive one also has the lock of
// [records.Collector], which plugins inherit, and whose file can be replaced.
type dirLock struct {
	dir       *durable.Dir
	collector *scratch.Lock // nil if it is shared
}

// File returns a new descriptor of the file that plugins inherit, or nil, as [scratch.Lock.File].
func (l *dirLock) File() *os.File { return l.collector.File() }

// lockDir locks the directory of the records. Those who make a record share the lock. While it
// is exclusive, or plugins of a GC that was killed have its file, nobody makes one. See [unlockDir].
func (m *Manager) lockDir(ctx context.Context, exclusive bool) (*dirLock, error) {
	take := func(limit time.Duration) (*dirLock, error) {
		dir, err := durable.MakeDir(m.Dir, nil)
		l := &dirLock{dir: dir}
		if err == nil {
			if err = cause.Of(ctx); err == nil {
				var waits *os.File // what the GC that runs sees
				err = flock.Wait(ctx, limit, func() (bool, error) {
					held, err := m.tryDir(ctx, l, exclusive)
					if !held && err == nil && !exclusive {
						_ = waits.Close() // the GC may have another file by now
						if waits, _ = os.Open(filepath.Join(m.Dir, records.LockName(records.Collector()))); waits != nil {
							_ = flock.Await(waits) // else the GC ends in its time
						}
					}
					return held, err
				})
				_ = waits.Close() // nothing was written
			}
			if err != nil {
				dir.Close()
			}
		}
		if e := (*scratch.Error)(nil); err != nil && !errors.As(err, &e) {
			err = &scratch.Error{Op: "lock", Err: err}
		}
		if err != nil {
			return nil, err
		}
		return l, nil
	}
	return locking(ctx, m, "another operation on the records", take, records.Collector())
}

// tryDir takes l if it is free.
func (m *Manager) tryDir(ctx context.Context, l *dirLock, exclusive bool) (bool, error) {
	held, err := l.dir.Flock(exclusive)
	if !held || err != nil {
		return false, err
	}
	if !exclusive {
		if _, err := l.dir.Stat(records.LockName(records.Collector())); errors.Is(err, fs.ErrNotExist) {
			return true, nil
		}
	}
	collector, err := m.lockWithin(ctx, time.Nanosecond, records.Collector())
	switch {
	case err == nil && exclusive:
		l.collector = collector
	case err == nil: // it was left by a GC that was killed
		err = collector.Unlock()
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return false, l.dir.Unflock()
	}
	if err != nil {
		return false, errors.Join(err, l.dir.Unflock())
	}
	return true, nil
}

// unlockDir releases the lock of [Manager.lockDir], also for plugins that have inherited
// it. If that fails, the lock ends with the process.
func unlockDir(l *dirLock) {
	if l.collector != nil {
		_ = l.collector.Unlock()
	}
	_ = l.dir.Unflock()
	l.dir.Close()
}

func (m *Manager) lockTimeout() time.Duration { return cmp.Or(m.LockTimeout, defaultLockTimeout) }

// defaultLockTimeout is used if [Manager.LockTimeout] is zero.
const defaultLockTimeout = 10 * time.Second

// orphanTimeout is how long a killed orphan may take to release the lock.
const orphanTimeout = 2 * time.Second

// lockIdle takes the lock of container id. It returns nil if another operation
// holds it. It ends what a dead holder has left.
func (m *Manager) lockIdle(ctx context.Context, id string) (*scratch.Lock, error) {
	l, err := m.lockWithin(ctx, idleTimeout, id)
	if err == nil || !errors.Is(err, context.DeadlineExceeded) {
		return l, err
	}
	if ended, err := m.endOrphans(ctx, id); !ended {
		return nil, err
	}
	return m.lockWithin(ctx, orphanTimeout, id)
}

// idleTimeout bounds the wait for the holder of a container's lock.
const idleTimeout = 100 * time.Millisecond
