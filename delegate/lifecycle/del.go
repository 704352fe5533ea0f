package lifecycle

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"github.com/metacni/metacni/internal/flock"
	"github.com/metacni/metacni/scratch"
)

// A DelRequest says what Del removes.
type DelRequest struct {
	// NetNS is the path of the container's network namespace, as the runtime
	// passes it with the DEL. Empty means the recorded one.
	NetNS string

	// Adopt, if not nil, finds the attachment in the records of another program. It
	// is called if there is no record of the attachment. What it returns is recorded, as
	// [Manager.Adopt] does, and then removed. It fails with [fs.ErrNotExist] if there
	// is nothing. With any other error Del fails.
	Adopt func() (Adoption, error)
}

// Del removes attachment k with its recorded configuration, and then its Files and
// its record. It cancels an Add of the same key in this Manager and waits for its
// undo.
//
// If there is no record of k, Del removes the records of this [Manager.Type] that have the same
// container and interface under the name of a network that is certainly not configured any more,
// see [Manager.Configured]: our network has been renamed since. If that is not certain, Del
// removes nothing and fails with code 11, unless an Add of k was refused. With no such record, and
// nothing to adopt, it returns nil.
//
// Del runs every plugin, whatever fails, and joins the errors. When one fails the
// record stays, for the next try. A plugin whose DEL has succeeded is not run
// again: what it has freed, such as an address, may belong to another container
// by then. If the record is damaged, Del fails with [scratch.ErrCorrupt]. Every
// error is an [*Error].
//
// Del returns nil in three cases although the record stays:
//
//   - The bound of [Manager.DelTries] is reached.
//   - Everything is detached, and only a file cannot be removed: one of an attachment's
//     Files or of [Adoption.Sources].
//   - The attachment never came about, its interfaces are not in the network namespace,
//     and every plugin was tried: ctx has not ended, or in DelTries DELs. The record is a
//     [scratch.Leftover], which a [Sweeper] retries.
//
// A plugin may run inside an operation on the same container, and call Del. Del
// then returns nil if nothing is added under the key: it undoes an Add that was
// refused there. Otherwise it fails with code 7.
//
// The plugins receive the path of the DelRequest if the namespace of the ADD is there, or
// else the recorded path if it is there. Otherwise they receive none, because the path
// may belong to another container by now. If nobody knows the namespace of the ADD, they receive
// the path of the DelRequest, unless it leads to the namespace of another container's record.
func (m *Manager) Del(ctx context.Context, k scratch.Key, r DelRequest) error {
	m.supersede(k)
	if m.nothing(k) && !r.elsewhere() {
		return nil
	}
	err := m.locked(ctx, opDel, k, func(ctx context.Context, l *scratch.Lock) error {
		o := m.observe()
		o.given = r.NetNS
		found, err := m.lookUp(ctx, k, o)
		if err != nil || found.keys == nil && found.unsure != nil {
			return errors.Join(err, found.fail(k))
		}
		e := errand{given: r.NetNS, stale: m.Stale}
		if found.keys == nil && !found.refused { // an ADD that was killed may have left a file
			if _, err := m.remove(ctx, l, k, e); err != nil {
				return err
			}
		}
		if found.keys == nil && r.Adopt != nil && !found.refused {
			a, err := r.Adopt()
			if err != nil {
				return except(err, notThere)
			}
			if adopted, err := m.adopt(ctx, l, a); err != nil || !adopted {
				return err
			}
			found.keys = []scratch.Key{a.Key}
		}
		var errs []error
		if found.refused {
			errs = append(errs, m.settleRefused(ctx, l, k))
		}
		for _, k := range found.keys {
			if _, err := m.remove(ctx, l, k, e); !errors.Is(err, errStale) && !errors.As(err, new(*givenUpError)) {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	})
	return fail(opDel, k, m.answer(ctx, k, r, err))
}

// elsewhere reports whether another program may have a record of the attachment.
func (r DelRequest) elsewhere() bool {
	if r.Adopt == nil {
		return false
	}
	_, err := r.Adopt()
	return !errors.Is(err, fs.ErrNotExist)
}

// answer returns what Del of k returns when it has failed with err. It is nil if nothing of k can
// be attached.
func (m *Manager) answer(ctx context.Context, k scratch.Key, r DelRequest, err error) error {
	switch {
	case errors.Is(err, flock.ErrNested) && m.refused(k):
		return nil
	case noRoom(err) && !r.elsewhere(): // without the lock's file nobody is attaching k either
		if found, lookErr := m.lookUp(ctx, k, m.observe()); lookErr == nil && found.keys == nil && found.unsure == nil {
			return nil
		}
	}
	return err
}

// refused reports whether an ADD of k, inside an operation that holds the lock,
// cannot have done anything. Then there is no record, or that of the operation,
// which is not finished.
func (m *Manager) refused(k scratch.Key) bool {
	r, err := m.store().Get(k)
	return errors.Is(err, fs.ErrNotExist) || err == nil && !r.State.Attached()
}

// noRoom reports whether the cause of err is a file system that takes no new
// file: it is full, has no inodes left, or is read-only.
func noRoom(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS)
}
