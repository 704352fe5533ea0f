package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"syscall"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/internal/flock"
	"github.com/metacni/metacni/scratch"
)

// A Removal says what Del removes.
type Removal struct {
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
// If there is no record of k, Del removes the record of this [Manager.Type] that
// has the same container and interface under another network: the configuration has been
// renamed since. With two such records it fails with code 7. With none, and nothing to
// adopt, it returns nil.
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
// The plugins receive the path of the Removal if the namespace of the ADD is there, or
// else the recorded path if it is there. Otherwise they receive none, because the path
// may belong to another container by now.
func (m *Manager) Del(ctx context.Context, k scratch.Key, r Removal) error {
	m.supersede(k)
	if m.nothing(k) && !r.elsewhere() {
		return nil
	}
	recorded := k
	err := m.locked(ctx, opDel, k, func(ctx context.Context, l *scratch.Lock) error {
		e := errand{given: r.NetNS, stale: m.Stale}
		if found, err := m.remove(ctx, l, k, e); err != nil || found {
			return err
		}
		var err error
		if recorded, err = m.renamed(ctx, l, k); err != nil {
			return err
		}
		if recorded != k {
			_, err := m.remove(ctx, l, recorded, e)
			return err
		}
		if r.Adopt == nil {
			return nil
		}
		a, err := r.Adopt()
		if err != nil {
			return except(err, notThere)
		}
		if adopted, err := m.adopt(ctx, l, a); err != nil || !adopted {
			return err
		}
		_, err = m.remove(ctx, l, k, e)
		return err
	})
	return fail(opDel, k, m.answer(recorded, r, err))
}

// elsewhere reports whether another program may have a record of the attachment.
func (r Removal) elsewhere() bool {
	if r.Adopt == nil {
		return false
	}
	_, err := r.Adopt()
	return !errors.Is(err, fs.ErrNotExist)
}

// renamed returns the key of the only record of this plugin that has the container and the
// interface of k, which is not recorded: our network had another name at ADD. Without such
// a record it returns k.
func (m *Manager) renamed(ctx context.Context, l *scratch.Lock, k scratch.Key) (scratch.Key, error) {
	if m.Type == "" {
		return k, nil
	}
	rs, err := m.store().Container(ctx, k.ContainerID)
	ofAnother := func(err error) bool {
		e := (*scratch.Error)(nil)
		return errors.As(err, &e) && e.Key.IfName != k.IfName
	}
	if err := except(err, ofAnother); err != nil {
		return k, err
	}
	found := k
	var names []string
	for _, r := range rs {
		if r.Key.IfName == k.IfName && r.Value.Type == m.Type {
			found = r.Key
			names = append(names, strconv.Quote(r.Key.Network))
		}
	}
	if len(names) > 1 {
		return k, fault.New(types.ErrInvalidNetworkConfig, fmt.Sprintf(
			"network %q has no record of the attachment, and those of networks %s may be meant: repeat the DEL with the name of one", k.Network, strings.Join(names, " and ")))
	}
	return found, nil
}

// answer returns what Del returns when the removal of k has failed with err. It is nil
// if the runtime may remove the container all the same.
func (m *Manager) answer(k scratch.Key, r Removal, err error) error {
	switch {
	case errors.Is(err, errStale):
		return nil
	case errors.As(err, new(*givenUpError)), errors.Is(err, flock.ErrNested) && m.refused(k):
		return nil
	case noRoom(err) && m.unrecorded(k) && !r.elsewhere():
		return nil // without the lock's file nobody is attaching k either
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
