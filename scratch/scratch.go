// Package scratch keeps a plugin's state from ADD until DEL.
//
// A CNI plugin is a new process for every command. What it must remember about
// an attachment it writes down here: before it acts, so that a crash leaves
// something to clean up with, and again when it knows more. A record that
// [Store.Put] has written survives a crash at any point, whole or not at all;
// a damaged one is set aside and reported until someone deals with it, and
// never harms another.
//
// The caveat: records are as safe as the file system keeps what it has synced,
// a [Lock] only keeps out those who ask for it, and both want a local file
// system.
//
// # On disk
//
// A container's records are in a directory of its own, Dir/CONTAINER, each in
// a file NETWORK@IFNAME.json; a damaged record has ".corrupt" appended. The
// lock is Dir/CONTAINER@lock. Names longer than 190 bytes become "#" and the
// SHA-256 of the name. Nothing of a container stays when its last record is
// deleted and its lock released. Other files are ignored.
//
// A record file is lines of text, each the first 16 hexadecimal digits of the
// SHA-256 of what follows, a space, and a JSON object that holds its own key
// and a version. The last line whose sum, version and key fit is the record.
// So a record can be added to without being endangered: what a crash leaves of
// a line does not count, and the one before does.
//
// Directories have mode 0700 and files 0600: configurations hold credentials.
// Names from outside stay inside Dir, and no symbolic link in it is followed.
package scratch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/metacni/metacni/internal/durable"
)

// A Key identifies one attachment of one network as the runtime knows it. A
// container may be attached to a network more than once, so the container ID
// alone is no key.
//
// Network and ContainerID are names in the sense of the CNI specification
// (section 1 and section 2, "Parameters"): a letter or digit followed by
// letters, digits, ".", "_" and "-". IfName is 1 to 15 bytes of UTF-8, not "."
// or "..", without "/", ":", white space and control characters. Every verb
// refuses another key with an [*Error] of code 7 (network) or 4.
type Key struct {
	Network, ContainerID, IfName string
}

// String returns k as "network/container/ifname".
func (k Key) String() string { return k.Network + "/" + k.ContainerID + "/" + k.IfName }

// A State says how far an attachment has come.
type State string

// The states of a record.
const (
	Planned  State = "planned"  // about to be attached; nothing, a part or all of it is
	Added    State = "added"    // attached
	Deleting State = "deleting" // being detached; all, a part or nothing of it is left
)

func (s State) valid() bool { return s == Planned || s == Added || s == Deleting }

// A Record is what is stored under a key.
type Record[T any] struct {
	Key     Key
	State   State
	Created time.Time // when Put wrote the record, in UTC
	Updated time.Time // when it was last written; set by the verb that writes
	Value   T
}

// A Store holds one record per key, as files in one directory. T goes through
// encoding/json and must come back as it went.
//
// Any number of goroutines and processes may use one directory. Those that
// write one container's records should hold its [Store.Lock]: without it no
// record is torn, but of two that write the same key either may win.
//
// Every error is an [*Error], except that several damaged records are reported
// as several of them, joined, and that what Consume's callback returns is
// passed on as it is.
type Store[T any] struct {
	// Dir is the directory. The verbs that write make it when it is missing,
	// for the others it is empty then. The zero value is an error.
	Dir string

	hook *durable.Hook // tests fail and stop it at every system call
}

func (s Store[T]) files() files {
	f := files{dir: s.Dir}
	if s.hook != nil {
		f.hook = *s.hook
	}
	return f
}

// Put starts a record under k, in place of any other. When it returns nil the
// record survives a loss of power; when it fails, what was there before is
// there, or the new record is.
//
// A key whose damaged record has been set aside is refused with [ErrCorrupt]
// until [Store.Forget]: what it would have cleaned up is not known.
func (s Store[T]) Put(k Key, st State, v T) error {
	return s.replace("put", Record[T]{Key: k, State: st, Value: v})
}

// Update is Put for a record that has been read: it keeps r.Created. A zero
// r.Created means now.
func (s Store[T]) Update(r Record[T]) error { return s.replace("update", r) }

func (s Store[T]) replace(op string, r Record[T]) error {
	line, err := encode(r)
	if err == nil {
		err = s.files().replace(r.Key, line)
	}
	return fail(op, r.Key, err)
}

// Note writes r over the record that is there without waiting for the disk.
// What it wrote survives the death of the process; a loss of power may take it
// back, and then the record reads as before. A zero r.Created means now.
//
// Without a record it fails with [fs.ErrNotExist], or [ErrCorrupt] when it was
// damaged. When it fails otherwise, the record reads as before or as r.
func (s Store[T]) Note(r Record[T]) error {
	line, err := encode(r)
	if err == nil {
		err = s.files().note(r.Key, line)
	}
	return fail("note", r.Key, err)
}

// Get returns the record under k. Without one it fails with [fs.ErrNotExist].
// A record that cannot be read back is set aside and is [ErrCorrupt], this
// time and every time until [Store.Forget]. One of another version of the
// format, or whose value T does not take, cannot be read back either.
func (s Store[T]) Get(k Key) (Record[T], error) {
	var r Record[T]
	err := checkKey(k)
	if err == nil {
		err = s.files().get(k, func(data []byte) (err error) {
			r, err = decode[T](data, func(got Key) bool { return got == k })
			return err
		})
	}
	return r, fail("get", k, err)
}

// Delete forgets the record under k, and removes what its container has left
// when it was the last. Forgetting what is not there succeeds. It does not wait
// for the disk: after a loss of power the record may be there again, which
// means one more DEL. It leaves damaged records alone, see [Store.Forget].
func (s Store[T]) Delete(k Key) error {
	err := checkKey(k)
	if err == nil {
		err = s.files().remove(k, false)
	}
	return fail("delete", k, err)
}

// Forget is Delete that also removes the damaged record of k. It is for an
// operator who has cleaned up by hand. It accepts keys as [Store.Damaged]
// returns them.
func (s Store[T]) Forget(k Key) error {
	err := checkStoredKey(k)
	if err == nil {
		err = s.files().remove(k, true)
	}
	return fail("forget", k, err)
}

// Consume calls use with the record under k and, only when use returns nil,
// deletes it. When use fails the record stays, for another try, and Consume
// returns use's error as it is. When there is no record Consume returns nil
// without calling use, as the specification asks of DEL; a damaged one is
// [ErrCorrupt]. ctx is passed to use and not looked at.
//
// l must be the held lock of k's container in this store.
func (s Store[T]) Consume(ctx context.Context, l *Lock, k Key, use func(context.Context, Record[T]) error) error {
	if !l.holds(s.Dir, k.ContainerID) {
		return fail("consume", k, errNotHeld)
	}
	r, err := s.Get(k)
	if errors.Is(err, fs.ErrNotExist) {
		// A Put that was interrupted may have left an empty directory.
		return s.Delete(k)
	}
	if err != nil {
		return err
	}
	if err := use(ctx, r); err != nil {
		return err
	}
	return s.Delete(k)
}

// Lock takes the lock of a container: one holder at a time on this machine,
// in this process or another. It waits until it has it or ctx ends; then the
// error is ctx's, of code 11. Where the process inherited the lock's file from
// the holder, waiting would be for ever: that is [ErrNested] at once.
//
// The lock is for what is done to the container. Memory that goroutines share
// needs a mutex of its own.
//
// The lock outlives its process as long as a child has its file open, see
// [Lock.File]. On systems other than Linux Lock fails with
// [errors.ErrUnsupported].
func (s Store[T]) Lock(ctx context.Context, containerID string) (*Lock, error) {
	l, err := s.files().lock(ctx, containerID)
	return l, fail("lock", Key{ContainerID: containerID}, err)
}

// KillOrphans ends what a dead holder of the container's lock has left behind,
// so that the lock can be had. For every process group that the holder passed
// to [Lock.Started] it sends SIGKILL to the group, if a process of the group
// still has the lock's file open. It returns how many groups it killed.
//
// It does nothing while the holder lives, when the holder was in another PID
// namespace, and to a group whose number belongs to others by now. It does not
// wait for the killed to be gone: [Store.Lock] does.
func (s Store[T]) KillOrphans(containerID string) (killed int, err error) {
	killed, err = s.files().killOrphans(containerID)
	return killed, fail("kill orphans", Key{ContainerID: containerID}, err)
}

// fail wraps err, once.
func fail(op string, k Key, err error) error {
	if err == nil {
		return nil
	}
	if e := (*Error)(nil); errors.As(err, &e) {
		return err
	}
	path := ""
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		path = p.Path
		if err == error(p) { //nolint:errorlint // itself, not one in it
			err = fmt.Errorf("%s: %w", p.Op, p.Err)
		}
	}
	return &Error{Op: op, Key: k, Path: path, Err: err}
}
