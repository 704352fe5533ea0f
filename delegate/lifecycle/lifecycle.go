// Package lifecycle manages a container's attachments from ADD to DEL. It runs
// plugins with package delegate and keeps records with package scratch:
//
//   - An attachment is recorded before the first plugin runs.
//   - An ADD that fails is undone.
//   - DEL, CHECK and GC work from the record, not from the configuration.
//   - Operations on one container run one after another, in one process and
//     across processes.
//
// The package knows no configuration format and no command line: thin plugins,
// daemons and node agents use the same [Manager].
package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/cause"
	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/flock"
	"github.com/metacni/metacni/internal/records"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// DefaultLockTimeout is what a zero [Manager.LockTimeout] means.
const DefaultLockTimeout = 10 * time.Second

// orphanTimeout is how long a killed orphan may take to release the lock.
const orphanTimeout = 2 * time.Second

// A Manager attaches containers to networks and keeps a record of each
// attachment. Its fields must not change once it is in use. It is then safe for
// concurrent use by any number of goroutines, and its Dir by any number of
// processes.
//
// Operations on one container run one after another, also those of other
// processes. An operation waits for the container's lock for LockTimeout at most.
// If a plugin whose parent has died holds the lock then, the plugin is killed. If
// anything else holds it, the operation fails with CNI code 11.
type Manager struct {
	// Invoker runs the plugins. Nil means the zero Invoker, which finds none.
	// Its Parallel applies to the attachments of one operation. Operations on
	// one container always run one after another.
	Invoker *delegate.Invoker

	// Dir is the directory of the records. It is made when it is missing.
	Dir string

	// Type is the plugin's type. Records have it, so that Del finds those of this
	// plugin after its network has been renamed. Without it Del does not look for
	// them.
	Type string

	// Root, if not empty, is the root directory for paths of network
	// namespaces. It is the same as [delegate.Process.Root].
	Root string

	// LockTimeout bounds the wait for other operations on the container, and
	// of an ADD for a GC. Zero means [DefaultLockTimeout]. If it is negative,
	// what needs a lock fails with CNI code 7. It should be the same for all who
	// use Dir.
	LockTimeout time.Duration

	// DelTries bounds how often Del fails for an attachment whose container has
	// no network namespace any more. After that many failures, of any plugin
	// and for any reason, Del returns nil, so that the runtime can remove the
	// container. The record stays, as "deleting". Each GC and [Sweeper] tries
	// again, until the DEL succeeds or the record is forgotten, and an ADD of
	// the attachment fails. Zero means no bound.
	DelTries int

	// Stale, if not nil, is for DELs that may be older than the attachment, such as
	// those from a queue. Del calls it with the time when the attachment was recorded,
	// while it has the lock of the container. If Stale returns true or an error, Del
	// changes nothing and returns nil or the error.
	Stale func(recorded time.Time) (bool, error)

	// InterfaceNames returns the names in use in the network namespace at a
	// path, for Add and Attach. Nil means [ifname.Taken] for paths in Root. A
	// path that does not exist, is not a network namespace or must not be
	// entered by an ordinary user then has no names. A function that returns
	// nothing leaves it to the plugins to detect names in use.
	InterfaceNames func(netns string) ([]string, error)

	mu   sync.Mutex
	adds map[scratch.Key][]*running // of this Manager, guarded by mu
}

func (m *Manager) store() scratch.Store[record] {
	return scratch.Store[record]{Dir: m.Dir}
}

func (m *Manager) invoker() *delegate.Invoker {
	if m.Invoker != nil {
		return m.Invoker
	}
	return &delegate.Invoker{}
}

// locked calls do while it holds the lock of container id.
func (m *Manager) locked(ctx context.Context, id string, do func(context.Context, *scratch.Lock) error) error {
	l, err := m.lock(ctx, id)
	if err != nil {
		return err
	}
	return m.holding(ctx, id, l, do)
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
var errNegative error = &codedError{types.ErrInvalidNetworkConfig, "the LockTimeout is negative", nil}

func (m *Manager) lock(ctx context.Context, id string) (*scratch.Lock, error) {
	take := func(ctx context.Context) (*scratch.Lock, error) { return m.store().Lock(ctx, id) }
	kill := func() (int, error) { return m.killOrphans(id) }
	return locking(ctx, m, "another operation on the container", take, kill)
}

// locking calls take, which takes a lock. When the lock is not free in time, it calls
// kill, which kills the plugins whose parent has died and which hold it. If there are
// none, the holder has not ended.
func locking[L any](ctx context.Context, m *Manager, holder string, take func(context.Context) (L, error), kill func() (int, error)) (L, error) {
	var none L
	if m.LockTimeout < 0 {
		return none, errNegative
	}
	l, err := within(ctx, m.lockTimeout(), take)
	if err == nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return l, err
	}
	killed, killErr := kill()
	if killed == 0 {
		return none, also(fmt.Errorf("%s has not ended: %w", holder, err), killErr)
	}
	return within(ctx, orphanTimeout, take)
}

func within[L any](ctx context.Context, limit time.Duration, take func(context.Context) (L, error)) (L, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return take(ctx)
}

func (m *Manager) lockWithin(ctx context.Context, limit time.Duration, id string) (*scratch.Lock, error) {
	return within(ctx, limit, func(ctx context.Context) (*scratch.Lock, error) { return m.store().Lock(ctx, id) })
}

// killOrphans kills the plugins whose parent has died and which hold the lock of
// container id.
func (m *Manager) killOrphans(id string) (int, error) {
	return flock.KillOrphans(filepath.Join(m.Dir, records.LockName(id)))
}

// lockDir locks the directory of the records, and returns it. Those who make a record
// share the lock. While it is exclusive nobody makes one. See [unlockDir].
func (m *Manager) lockDir(ctx context.Context, exclusive bool) (*durable.Dir, error) {
	take := func(ctx context.Context) (*durable.Dir, error) {
		dir, err := durable.MakeDir(m.Dir, nil)
		if err == nil {
			if err = cause.Of(ctx); err == nil {
				err = flock.Wait(ctx, func() (bool, error) { return dir.Flock(exclusive) })
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
	return locking(ctx, m, "another operation on the records", take, kill)
}

// unlockDir releases the lock of [Manager.lockDir], also for plugins that have inherited
// it. If that fails, the lock ends with the process.
func unlockDir(dir *durable.Dir) {
	_ = dir.Unflock()
	dir.Close()
}

func (m *Manager) lockTimeout() time.Duration { return cmp.Or(m.LockTimeout, DefaultLockTimeout) }

func (m *Manager) undoTimeout() time.Duration {
	return cmp.Or(m.invoker().UndoTimeout, delegate.DefaultUndoTimeout)
}

// Check asks the plugins of the attachment k to confirm it, with the recorded
// configuration and results. It fails with [ErrNotAdded] when k is not recorded
// as added, with [scratch.ErrCorrupt] when its record is damaged, and otherwise
// with the [*delegate.Error] of the first plugin that fails. It ignores what an
// interrupted [Manager.Attach] has left.
func (m *Manager) Check(ctx context.Context, k scratch.Key) error {
	if m.nothing(k) {
		return fail(OpCheck, k, ErrNotAdded)
	}
	return fail(OpCheck, k, m.locked(ctx, k.ContainerID, func(ctx context.Context, _ *scratch.Lock) error {
		r, err := m.added(k)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(r.Value.Delegates, func(e entry) bool { return e.Half && e.IfName == k.IfName }) {
			return ErrNotAdded
		}
		r.Value.Delegates = slices.DeleteFunc(r.Value.Delegates, halfDone)
		return m.invoker().CheckAll(ctx, r.Value.attached(k.ContainerID, asRecorded))
	}))
}

// Status returns why no ADD can be served: the first reason. It writes a file in Dir,
// syncs and removes it, as an ADD begins by writing a record; if that fails the error is
// a [*scratch.Error]. Then it asks every plugin of nets, in order; their error is a
// [*delegate.Error]. Without a Dir it only asks the plugins.
func (m *Manager) Status(ctx context.Context, nets []netconf.Network) error {
	if m.Dir != "" {
		dir, err := durable.MakeDir(m.Dir, nil)
		if err == nil {
			err = dir.TryWrite()
			dir.Close()
		}
		if err != nil {
			return &scratch.Error{Op: "write", Path: m.Dir, Err: err}
		}
	}
	for _, n := range nets {
		if err := m.invoker().Status(ctx, n); err != nil {
			return err
		}
	}
	return nil
}
