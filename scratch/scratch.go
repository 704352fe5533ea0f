// Package scratch keeps a plugin's state from ADD until DEL.
//
// A CNI plugin is a new process for every command. What it must remember about
// an attachment it writes down here: before it acts, so that a crash leaves
// something to clean up with, and again when it knows more. A record that
// [Store.Put] has written survives a crash at any point, whole or not at all.
// A damaged one stays where it is, is reported until [Store.Forget], and never
// harms another.
//
// Two conditions: the directory is on a local file system, which keeps what it
// has synced, and whoever changes records takes their [Lock].
//
// # On disk
//
// Dir holds these files, and ignores others:
//
//   - CONTAINER@NETWORK@IFNAME.json is a record.
//   - CONTAINER@lock is the lock of a container, locked with flock(2). It stays
//     as long as the container has records, so that DEL and CHECK need no free
//     inode and no writable disk. Its mode says how many records there can be:
//     0400 none, 0600 one, any other mode any number.
//   - .spare-0 to .spare-7 are files of deleted records, kept for new ones.
//   - .tmp-* are files that are being written, or that a crash has left.
//
// A container ID or network name longer than 95 bytes becomes "#" and its
// SHA-256. Directories have mode 0700 and files 0600, because configurations
// hold credentials. Names from outside stay inside Dir, and no symbolic link in
// it is followed.
//
// A record's file is text. Each line has the first 16 hexadecimal digits of the
// SHA-256 of the rest, a space, and a JSON object that holds a version and the
// record's key. The last line whose checksum, version and key fit is the
// record. So a line can be added without risk: while it is incomplete, the line
// before it counts. Empty lines mean nothing.
//
// A file that belonged to a deleted record is written over from its beginning
// and filled up with newlines. Its first line then has "reused": true and the
// new record's key. If a loss of power brings the deleted record's name back,
// this line tells that the file is not its own any more.
//
// Version 1 of the format had a directory CONTAINER for each container, with
// the records as NETWORK@IFNAME.json in it, and appended ".corrupt" to the
// names of damaged ones. Such records are read where they are, and moved when
// their container's lock is taken.
package scratch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
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
	Partial  State = "partial"  // attached, and something more of it is half done
	Deleting State = "deleting" // being detached; all, a part or nothing of it is left
)

func (s State) valid() bool {
	return s == Planned || s == Added || s == Partial || s == Deleting
}

// Attached reports whether an attachment in state s is there for its container
// to use: [Added] or [Partial].
func (s State) Attached() bool { return s == Added || s == Partial }

// A Record is what is stored under a key.
type Record[T any] struct {
	Key     Key
	State   State
	Created time.Time // when the record was first put, in UTC; zero for a verb that writes means now
	Updated time.Time // when it was last written; set by the verb that writes
	Value   T
}

// A Store holds one record per key, as files in one directory. T goes through
// encoding/json and must come back as it went.
//
// Any number of goroutines and processes may use one directory. The verbs that
// write a record want the held [Lock] of its container in this store; with
// another they fail. The verbs that read need no lock.
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
	f := files{dir: s.Dir, value: func() any { return new(T) }}
	if s.hook != nil {
		f.hook = *s.hook
	}
	return f
}

// storedOf returns r with a pointer to its value.
func storedOf[T any](r Record[T]) stored {
	return stored{Key: r.Key, State: r.State, Created: r.Created, Updated: r.Updated, Value: &r.Value}
}

// typed returns r with the value itself.
func typed[T any](r stored) Record[T] {
	t := Record[T]{Key: r.Key, State: r.State, Created: r.Created, Updated: r.Updated}
	if v, ok := r.Value.(*T); ok {
		t.Value = *v
	}
	return t
}

// Put writes r, in place of any other record under its key. When it returns nil
// the record survives a loss of power; when it fails, what was there before is
// there, or r is.
//
// A damaged record is not replaced: that is [ErrCorrupt] until [Store.Forget],
// because nobody knows what it would have cleaned up. Nor is one of another
// version, see [ErrVersion].
func (s Store[T]) Put(l *Lock, r Record[T]) error {
	return fail("put", r.Key, s.files().put(l, storedOf(r)))
}

// Note writes r over the record that is there without waiting for the disk.
// What it wrote survives the death of the process; a loss of power may take it
// back, and then the record reads as before.
//
// Without a record it fails with [fs.ErrNotExist], and over a damaged one with
// [ErrCorrupt]. When it fails otherwise, the record reads as before or as r.
func (s Store[T]) Note(l *Lock, r Record[T]) error {
	return fail("note", r.Key, s.files().note(l, storedOf(r), encode))
}

// A Changer is a value that can be changed in part, see [Store.NoteChange].
type Changer interface {
	// Change changes the value as text says, the JSON of a change that was
	// noted. What it refuses with an error is passed over.
	Change(text json.RawMessage) error
}

// NoteChange is Note at a fraction of the cost: it writes change alone, with
// r's state. *T is a [Changer], and r.Value is the value that was last written
// with change applied to it. When several changes have been noted and one is
// damaged, the others count.
func (s Store[T]) NoteChange(l *Lock, r Record[T], change any) error {
	return fail("note", r.Key, s.files().note(l, storedOf(r), func(r stored) ([]byte, error) { return encodeChange(r, change) }))
}

// Get returns the record under k. Without one it fails with [fs.ErrNotExist].
// A record that cannot be read back, or whose value T does not take, is
// [ErrCorrupt], and one of another version of the format [ErrVersion].
func (s Store[T]) Get(k Key) (Record[T], error) {
	r, err := s.files().get(k)
	if err != nil {
		return Record[T]{}, fail("get", k, err)
	}
	return typed[T](r), nil
}

// Delete deletes the record under k. Deleting what is not there succeeds. It
// does not wait for the disk: after a loss of power the record may be there
// again, which means one more DEL. A damaged record is [ErrCorrupt], one of
// another version [ErrVersion]; both stay.
func (s Store[T]) Delete(l *Lock, k Key) error {
	_, err := s.files().remove(l, k)
	return fail("delete", k, err)
}

// Forget is Delete for damaged records too. It is for an operator who has
// cleaned up by hand. It accepts a key as [Store.List] has it in an [*Error]. A
// record of another version stays, and Forget fails with [ErrVersion].
func (s Store[T]) Forget(l *Lock, k Key) error {
	return fail("forget", k, s.files().forget(l, k))
}

// Consume calls use with the record under k and, only when use returns nil,
// deletes it. When use fails the record stays, for another try, and Consume
// returns use's error unchanged. When there is no record Consume returns nil
// without calling use, as the specification asks of DEL; a damaged one is
// [ErrCorrupt], and one of another version [ErrVersion]. ctx is passed to use.
// Where a program of the former layout has made another record under k, use is
// called with both.
func (s Store[T]) Consume(ctx context.Context, l *Lock, k Key, use func(context.Context, Record[T]) error) error {
	for {
		r, err := s.files().read(l, k)
		if errors.Is(err, fs.ErrNotExist) {
			return s.Delete(l, k) // a Put that was killed may have left something
		}
		if err != nil {
			return fail("consume", k, err)
		}
		if err := use(ctx, typed[T](r)); err != nil {
			return err
		}
		another, err := s.files().remove(l, k)
		if err != nil || !another {
			return fail("delete", k, err)
		}
	}
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

// LockDir takes the lock of the whole directory: exclusive alone, otherwise
// together with any number of others. It is independent of the locks of
// containers. It waits until it has the lock or ctx ends. The second call of
// unlock does nothing. When exclusive is true and there is no directory, there
// is nothing to lock and LockDir succeeds; otherwise it makes the directory.
func (s Store[T]) LockDir(ctx context.Context, exclusive bool) (unlock func() error, err error) {
	unlock, err = s.files().lockDir(ctx, exclusive)
	return unlock, fail("lock", Key{}, err)
}

// KillOrphans ends what a dead holder of the container's lock has left behind,
// so that the lock can be had: every process that inherited the lock's file,
// see [Lock.File], gets SIGKILL, and its process group too if it leads one. It
// returns how many processes it killed.
//
// It kills nobody while the holder lives or may live, or when this process is
// one of those that have the file. Processes that wait for the lock are no
// holders. It does not wait for the killed to be gone: [Store.Lock] does.
func (s Store[T]) KillOrphans(containerID string) (killed int, err error) {
	killed, err = s.files().killOrphans(containerID)
	return killed, fail("kill orphans", Key{ContainerID: containerID}, err)
}

// WriteFile replaces the file at path with data, atomically and durably. It is for
// state that must have another program's format; for a plugin's own state there is
// [Store].
//
//   - A reader sees the old file or the new one, never a part, and so does a
//     program that starts after a crash.
//   - When WriteFile returns nil, the new file survives a loss of power. When it
//     fails, the old file or the new one is there.
//   - The new file has mode 0600. The directory must exist. A symbolic link at
//     path is replaced, not followed.
//
// A crash may leave a temporary file beside path, whose name begins with ".tmp-".
// Goroutines and processes that write one file at the same time need a lock of
// their own: the last one wins.
func WriteFile(path string, data []byte) error {
	dir, name := filepath.Split(path)
	d, err := durable.OpenDir(filepath.Clean(dir), nil)
	if err == nil {
		err = d.WriteFile(name, data)
		d.Close()
	}
	return fail("write", Key{}, err)
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
