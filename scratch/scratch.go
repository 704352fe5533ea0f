// Package scratch keeps a plugin's state from ADD until DEL.
//
// A CNI plugin is a new process for every command. It records here what it must
// remember about an attachment: before it acts, so that after a crash a DEL can
// clean up, and again with the result. A record that [Store.Put] has written
// survives a crash at any point, whole or not at all. A damaged record stays where
// it is, is reported until [Store.Forget], and never harms another.
//
// There are two conditions: the directory is on a local file system that keeps
// what it has synced and has a journal or copies on write, such as ext4, XFS or
// btrfs, and a program that changes records holds their [Lock].
//
// # On disk
//
// Dir holds these files, and ignores others:
//
//   - CONTAINER@NETWORK@IFNAME.json is a record.
//   - CONTAINER@lock is the lock of a container, locked with flock(2). It stays
//     as long as the container has records, so that DEL and CHECK need no free
//     inode and no writable disk. Its content says which programs an operation
//     runs; a program without it works as well.
//   - .tmp-* are files that are being written, or that a crash has left behind: one for
//     each file, which its next writer replaces. [Lock.Unlock] removes those of a container
//     without records.
//
// A container ID or network name longer than 95 bytes becomes "#" and its SHA-256.
// Directories have mode 0700 and files 0600, because configurations hold
// credentials. There is no path traversal: no name leads out of Dir, and no
// symbolic link in Dir is followed.
//
// A record's file is text. Each line has the first 16 hexadecimal digits of the
// SHA-256 of the rest, a space, and a JSON object with a version and the record's
// key. The last line with the right checksum, version and key is the record. So
// appending a line is safe: while it is incomplete, the line before it counts.
// Empty lines are ignored.
package scratch

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/rawjson"
	"github.com/metacni/metacni/internal/records"
)

// A Key identifies one attachment of one network as the runtime knows it. A
// container may be attached to a network more than once, so the container ID
// alone is no key.
//
// Network and ContainerID are names in the sense of the CNI specification
// (section 1 and section 2, "Parameters"): a letter or digit followed by
// letters, digits, ".", "_" and "-". IfName is 1 to 15 bytes of UTF-8, not "."
// or "..", without "/", ":", white space and control characters. Every method
// refuses another key with an [*Error] of code 7 (network) or 4.
type Key struct {
	Network, ContainerID, IfName string
}

// String returns k as "network/container/ifname".
func (k Key) String() string { return k.Network + "/" + k.ContainerID + "/" + k.IfName }

// Tag returns a name for something of the attachment in the language of another program, such as
// a firewall: prefix and 16 of "a" to "z" and "2" to "7", a hash of k, so that two attachments
// practically always have different tags. With a prefix of up to 12 such characters, and "-" or "_", it is a name for
// nftables, iptables (28 bytes) and ipset. Interfaces have shorter names (15 bytes): cut it.
//
// IfName itself is no such name, because its author is often that of the pod: "eth0#" and "a;b"
// are interfaces, and in nft "#" begins a comment and ";" ends a statement.
func (k Key) Tag(prefix string) string {
	sum := sha256.Sum256([]byte(records.Part(k.Network) + "\x00" + records.Part(k.ContainerID) + "\x00" + k.IfName))
	return prefix + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:10]))
}

// A State says how far an attachment has come.
type State string

// The states of a record.
const (
	Planned  State = "planned"  // being attached: nothing, a part or everything is done
	Added    State = "added"    // attached
	Partial  State = "partial"  // attached, and a later change of it is half done
	Deleting State = "deleting" // being detached: everything, a part or nothing is left
	Leftover State = "leftover" // left of an attachment that never came about
)

func (s State) valid() bool {
	return s == Planned || s == Added || s == Partial || s == Deleting || s == Leftover
}

// Attached reports whether the container can use an attachment in state s: it is
// [Added] or [Partial].
func (s State) Attached() bool { return s == Added || s == Partial }

// A Record is what is stored under a key. One that was read and is written again keeps what a
// later release has stored with it.
type Record[T any] struct {
	Key     Key
	State   State
	Created time.Time // when the record was first put, in UTC; methods that write keep the recorded time if this is zero
	Updated time.Time // when the record was last written; set by the methods that write
	Value   T

	rest rawjson.Rest // of its line; a record that was read and is written again keeps it
}

// A Store holds one record per key, as files in one directory. T must round-trip
// through encoding/json. A record whose value it cannot decode is damaged.
//
// Any number of goroutines and processes may use one directory. The methods that
// write a record need the held [Lock] of its container in this store, and fail
// with another. The methods that read need no lock.
//
// Every error is an [*Error], except that of Consume's callback, which is returned as it is.
type Store[T any] struct {
	// Dir is the directory. Methods that write make it if it is missing; for
	// methods that read, a missing directory is an empty one. It must be set.
	Dir string

	// LockTimeout bounds how long Lock waits for another holder. A lock that is free is
	// taken however long that takes. Zero means no bound but that of the context.
	LockTimeout time.Duration

	hook *durable.Hook // tests fail and stop it at every system call
}

// Put writes r, in place of any other record under its key. When it returns nil,
// the record survives a loss of power. When it fails, the record before is there,
// or r is.
//
// Put does not replace a damaged record, because nobody knows what it would have
// cleaned up: it fails with [ErrCorrupt] until [Store.Forget]. Nor does it replace
// a record of another version, see [ErrVersion].
func (s Store[T]) Put(l *Lock, r Record[T]) error {
	return l.using("put", s.Dir, r.Key, checkKey, func() error {
		if err := s.found(l, &r); gone(err) != nil {
			return err
		}
		line, err := encode(r)
		if err != nil {
			return err
		}
		return l.replace(fileName(r.Key), line)
	})
}

// Note updates the record under r's key to r, without waiting for the disk: at a
// fraction of the cost of Put. The update survives the death of the process. A loss
// of power may undo it; then the record reads as before.
//
// Note fails with [fs.ErrNotExist] when there is no record, and with [ErrCorrupt]
// when it is damaged. When Note fails otherwise, the record reads as before or
// as r.
func (s Store[T]) Note(l *Lock, r Record[T]) error {
	return l.using("note", s.Dir, r.Key, checkKey, func() error {
		if err := s.found(l, &r); err != nil {
			return err
		}
		line, err := encodeNote(r)
		if err != nil {
			return err
		}
		return s.note(l, r, line)
	})
}

// Get returns the record under k. It fails with [fs.ErrNotExist] when there is
// none, with [ErrCorrupt] when it is damaged or its value does not fit T, and with
// [ErrVersion] when it is of another version of the format.
func (s Store[T]) Get(k Key) (r Record[T], err error) {
	defer func() { err = fail("get", k, err) }()
	if err := checkKey(k); err != nil {
		return r, err
	}
	root, err := s.open(durable.OpenDir)
	if err != nil {
		return r, err
	}
	defer root.Close()
	return load[T](root, fileName(k), k)
}

// Consume calls use with ctx and the record under k, and deletes the record when
// use returns nil. When use fails, the record stays for the next try, and Consume
// returns use's error unchanged.
//
// When there is no record, Consume returns nil without calling use, as the
// specification asks of DEL. It fails with [ErrCorrupt] for a damaged record and
// with [ErrVersion] for one of another version.
func (s Store[T]) Consume(ctx context.Context, l *Lock, k Key, use func(context.Context, Record[T]) error) error {
	var r Record[T]
	err := l.using("consume", s.Dir, k, checkKey, func() (err error) {
		r, err = s.read(l, k)
		return err
	})
	if err == nil {
		err = use(ctx, r)
	} else {
		err = gone(err)
	}
	if err != nil {
		return err
	}
	return s.Delete(l, k)
}

// Delete deletes the record under k, and returns nil when there is none. It does
// not wait for the disk: after a loss of power the record may be there again, and
// needs one more DEL. A damaged record stays, and Delete fails with [ErrCorrupt];
// so does a record of another version, with [ErrVersion].
func (s Store[T]) Delete(l *Lock, k Key) error {
	return l.using("delete", s.Dir, k, checkKey, func() error {
		if l.known[fileName(k)] == 0 {
			if _, err := s.read(l, k); gone(err) != nil {
				return err
			}
		}
		return l.remove(fileName(k))
	})
}

// Forget is Delete for damaged records too. It is for an operator who has
// cleaned up by hand. It accepts a key as [Store.List] has it in an [*Error]. A
// record of another version stays, and Forget fails with [ErrVersion].
func (s Store[T]) Forget(l *Lock, k Key) error {
	return l.using("forget", s.Dir, k, checkStoredKey, func() error {
		if _, err := load[json.RawMessage](l.root, fileName(k), k); errors.Is(err, ErrVersion) {
			return err
		}
		return l.remove(fileName(k))
	})
}

// Lock takes the lock of a container. It has one holder at a time on this machine,
// in this process or another. Lock waits until the lock is free; when ctx ends
// before, it fails with ctx's error and code 11. After LockTimeout it fails with
// [context.DeadlineExceeded]. A process that inherited the
// lock's file from the holder would wait for ever: Lock fails with code 7 at once.
//
// The lock serialises operations on the container. It does not protect memory that
// goroutines share.
//
// The lock outlives its process as long as a child has its file open, see
// [Lock.File]. On systems other than Linux, Lock fails with
// [errors.ErrUnsupported].
func (s Store[T]) Lock(ctx context.Context, containerID string) (l *Lock, err error) {
	defer func() { err = fail("lock", Key{ContainerID: containerID}, err) }()
	if err := checkStoredContainer(containerID); err != nil {
		return nil, err
	}
	root, err := s.open(durable.MakeDir)
	if err != nil {
		return nil, err
	}
	l = &Lock{dir: s.Dir, container: containerID, root: root, name: records.LockName(containerID), fd: -1, known: map[string]int64{}}
	if err := l.take(ctx, s.LockTimeout); err != nil {
		root.Close()
		return nil, err
	}
	return l, nil
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
// A crash may leave a temporary file beside path, whose name begins with ".tmp-". The
// next WriteFile of path replaces it. Of goroutines and processes that write one file at
// the same time, the last one wins.
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
