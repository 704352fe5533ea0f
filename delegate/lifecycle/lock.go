package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
		if err := l.Unlock(); err != nil && m.invoker().Logger != nil {
			m.invoker().Logger.LogAttrs(ctx, slog.LevelDebug, "unlock", slog.String("container", id), slog.Any("err", err))
		}
	}()
	file := l.File()
	if err := handable(file); err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // it was not written to
	return do(delegate.WithFiles(ctx, file), l)
}

// handable fails when there is no descriptor of the lock's file to hand down.
// Plugins must not run without the lock.
func handable(lockFile *os.File) error {
	if lockFile == nil {
		return types.NewError(types.ErrTryAgainLater, "no file descriptor is left to hand the lock to plugins", "")
	}
	return nil
}

// errNegative refuses a negative LockTimeout.
var errNegative = fault.New(types.ErrInvalidNetworkConfig, "the LockTimeout is negative")

func (m *Manager) lock(ctx context.Context, id string) (*scratch.Lock, error) {
	take := func(limit time.Duration) (*scratch.Lock, error) { return m.lockWithin(ctx, limit, id) }
	kill := func() (int, error) { return m.killOrphans(id) }
	return locking(m, "another operation on the container", take, kill)
}

// locking calls take, which takes a lock within a time. When the lock is not free by then,
// it calls kill, which kills the plugins whose parent has died and which hold it. If there are
// none, the holder has not ended.
func locking[L any](m *Manager, holder string, take func(limit time.Duration) (L, error), kill func() (int, error)) (L, error) {
	var none L
	if m.LockTimeout < 0 {
		return none, errNegative
	}
	l, err := take(m.lockTimeout())
	if err == nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return l, err
	}
	killed, killErr := kill()
	if killed == 0 {
		return none, also(fmt.Errorf("%s has not ended: %w", holder, err), killErr)
	}
	return take(orphanTimeout)
}

func (m *Manager) lockWithin(ctx context.Context, limit time.Duration, id string) (*scratch.Lock, error) {
	return scratch.Store[record]{Dir: m.Dir, LockTimeout: limit}.Lock(ctx, id)
}

// killOrphans kills the plugins whose parent has died and which hold the lock of
// container id.
func (m *Manager) killOrphans(id string) (int, error) {
	return flock.KillOrphans(filepath.Join(m.Dir, records.LockName(id)))
}

// lockDir locks the directory of the records, and returns it. Those who make a record
// share the lock. While it is exclusive nobody makes one. See [unlockDir].
func (m *Manager) lockDir(ctx context.Context, exclusive bool) (*durable.Dir, error) {
	take := func(limit time.Duration) (*durable.Dir, error) {
		dir, err := durable.MakeDir(m.Dir, nil)
		if err == nil {
			if err = cause.Of(ctx); err == nil {
				err = flock.Wait(ctx, limit, func() (bool, error) { return dir.Flock(exclusive) })
			}
			if err != nil {
				dir.Close()
			}
		}
		if err != nil {
			return nil, &scratch.Error{Op: "lock", Err: err}
		}
		return dir, nil
	}
	kill := func() (int, error) {
		path, err := filepath.EvalSymlinks(m.Dir)
		if err != nil {
			return 0, err
		}
		return flock.KillOrphans(path)
	}
	return locking(m, "another operation on the records", take, kill)
}

// unlockDir releases the lock of [Manager.lockDir], also for plugins that have inherited
// it. If that fails, the lock ends with the process.
func unlockDir(dir *durable.Dir) {
	_ = dir.Unflock()
	dir.Close()
}

func (m *Manager) lockTimeout() time.Duration { return cmp.Or(m.LockTimeout, defaultLockTimeout) }

// defaultLockTimeout is used if [Manager.LockTimeout] is zero.
const defaultLockTimeout = 10 * time.Second

// orphanTimeout is how long a killed orphan may take to release the lock.
const orphanTimeout = 2 * time.Second

// lockIdle takes the lock of container id. It returns nil if another operation
// holds it. It kills plugins whose parent has died and which hold it.
func (m *Manager) lockIdle(ctx context.Context, id string) (*scratch.Lock, error) {
	l, err := m.lockWithin(ctx, idleTimeout, id)
	if err == nil || !errors.Is(err, context.DeadlineExceeded) {
		return l, err
	}
	if killed, err := m.killOrphans(id); killed == 0 {
		return nil, err
	}
	return m.lockWithin(ctx, orphanTimeout, id)
}

// idleTimeout bounds the wait for the holder of a container's lock.
const idleTimeout = 100 * time.Millisecond
