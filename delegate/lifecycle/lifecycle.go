// Package lifecycle keeps a container's attachments from ADD to DEL: it stitches
// packages delegate and scratch together so that an attachment is recorded
// before it is made, made whole or not at all, removed from what was recorded,
// and never worked on by two callers at once.
//
// It knows no configuration format and no command line: thin plugins, daemons
// and node agents use the same [Manager].
package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// DefaultLockTimeout is what a zero [Manager.LockTimeout] means.
const DefaultLockTimeout = 10 * time.Second

// orphanTimeout is how long a killed orphan may take to let go of the lock.
const orphanTimeout = 2 * time.Second

// A Manager attaches containers to networks and keeps the records of it. Its
// fields must not change once it is in use; it is then safe for concurrent use
// by any number of goroutines, and its Dir by any number of processes.
//
// Operations on one container are serialised, across processes too. Waiting
// for one another is bounded by LockTimeout. What then still holds the lock is
// killed if it is a plugin whose parent has died, and else left alone: the
// operation fails with CNI code 11.
type Manager struct {
	// Invoker runs the plugins. Nil means the zero one, which finds none. Its
	// Parallel is for the attachments of one operation: operations on one
	// container are serialised all the same.
	Invoker *delegate.Invoker

	// Dir is the directory of the records; it is made when missing.
	Dir string

	// Root, when not empty, is the root directory in which paths of network
	// namespaces are looked at: that of [delegate.Process.Root].
	Root string

	// LockTimeout bounds the wait for other operations on the container, and
	// of an ADD for a GC. Zero means [DefaultLockTimeout]. It should be the
	// same for all who use Dir.
	LockTimeout time.Duration

	// DelTries says after how many failed DELs of an attachment Del returns
	// nil, so that the runtime can let the container go, once the container's
	// network namespace is gone: whichever plugin fails, and for whatever
	// reason. The record stays, as "deleting", and each GC and [Sweeper] tries
	// again until it succeeds or the record is forgotten. An ADD of the
	// attachment fails meanwhile. Zero means never: what is left is an error
	// every time.
	DelTries int

	// InterfaceNames returns the names in use in the network namespace at a
	// path, for Add and Attach. Nil means [ifname.Taken] for paths in Root,
	// except that what is not there, is not a network namespace, or must not
	// be entered by an ordinary user, has no names. With a function that
	// returns nothing the plugins find a name in use, or do not.
	InterfaceNames func(netns string) ([]string, error)

	mu   sync.Mutex
	adds map[scratch.Key][]*running // of this Manager, guarded by mu
}

func (m *Manager) store() scratch.Store[record] { return scratch.Store[record]{Dir: m.Dir} }

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

// holding calls do, and then releases the lock l of container id. Plugins that
// do runs with its context inherit the lock, so that those that outlive this
// process keep it.
func (m *Manager) holding(ctx context.Context, id string, l *scratch.Lock, do func(context.Context, *scratch.Lock) error) error {
	defer func() {
		// Nothing that was done is undone by it, and the lock ends with us at the latest.
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

// handable fails when there is no descriptor of the lock's file to hand down:
// plugins that do not keep the lock must not run.
func handable(lockFile *os.File) error {
	if lockFile == nil {
		return types.NewError(types.ErrTryAgainLater, "no file descriptor is left to hand the container's lock to plugins", "")
	}
	return nil
}

func (m *Manager) lock(ctx context.Context, id string) (*scratch.Lock, error) {
	l, err := m.lockWithin(ctx, m.lockTimeout(), id)
	if err == nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return l, err
	}
	killed, killErr := m.store().KillOrphans(id)
	if killed == 0 {
		return nil, also(fmt.Errorf("another operation on the container has not ended: %w", err), killErr)
	}
	return m.lockWithin(ctx, orphanTimeout, id)
}

func (m *Manager) lockWithin(ctx context.Context, limit time.Duration, id string) (*scratch.Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return m.store().Lock(ctx, id)
}

// lockDir locks the directory of the records: exclusively, so that none is
// made, or with others who make one.
func (m *Manager) lockDir(ctx context.Context, exclusive bool) (unlock func() error, err error) {
	ctx, cancel := context.WithTimeout(ctx, m.lockTimeout())
	defer cancel()
	return m.store().LockDir(ctx, exclusive)
}

func (m *Manager) lockTimeout() time.Duration { return cmp.Or(m.LockTimeout, DefaultLockTimeout) }

func (m *Manager) undoTimeout() time.Duration {
	return cmp.Or(m.invoker().UndoTimeout, delegate.DefaultUndoTimeout)
}

// Check asks the plugins of the attachment k to confirm it, with the
// configuration and the results that were recorded. It fails with
// [ErrNotAdded] when k is not recorded as added, with [scratch.ErrCorrupt] when
// its record is damaged, and else with the first plugin's [*delegate.Error].
// What an interrupted [Manager.Attach] has left of itself is no part of it.
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

// Status asks every plugin of nets, in order, whether it can service an ADD,
// and stops at the first that cannot: its error is a [*delegate.Error].
func (m *Manager) Status(ctx context.Context, nets []netconf.Network) error {
	for _, n := range nets {
		if err := m.invoker().Status(ctx, n); err != nil {
			return err
		}
	}
	return nil
}
