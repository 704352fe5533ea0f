// Package queue keeps DELs that came while the daemon was away, as files in a
// directory. Shims write the files, several at a time. The daemon does the DELs.
//
// The files are the only state. A file survives a loss of power once [Queue.Put]
// has returned. As long as the file of an attachment exists, the attachment must
// not be added: the DEL, done later, would remove the new attachment. The file is
// removed when a DEL of the attachment has been done, whether it came from the
// queue or from the runtime, see [Queue.Remove].
//
// A shim writes only to a directory that a daemon reads. The daemon marks the
// directory, see [Reader.List]; without the mark [Queue.Put] fails. So no DEL is left in a
// directory that nobody reads, such as one of the same name in another root.
//
// The order in which both sides act guarantees that no DEL is overlooked. A shim
// that could not connect takes the shared lock, tries to connect again, and only
// then writes. The daemon listens first, then takes the exclusive lock and lists
// the files. So a shim has either written before the daemon listed, or it has
// found the daemon when it tried again.
package queue

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/flock"
)

// Cap is how many DELs a queue accepts, damaged files included. With several writers at
// once, each may add one more.
const Cap = 256

// A Queue is a directory of DELs, see [In]. Its methods may be called by any
// number of goroutines and processes at once. Their errors have a CNI code, and
// quote nothing of a configuration.
type Queue struct {
	dir  string
	hook durable.Hook // nil except in tests
}

// In returns the queue in the directory dir.
func In(dir string) Queue { return Queue{dir: dir} }

// Put writes r, unless there reports that a daemon is there. Call Put when connecting has
// failed before. there must only connect, because Put holds the lock meanwhile, and the
// daemon waits for it.
//
// If the queue has an undamaged request for the same attachment (network,
// container, interface, time of the record), Put keeps that one and drops r. Put
// returns true when the request survives a loss of power. After an error r may have been
// written nevertheless:
//   - [ErrUnread] if no daemon has marked the directory,
//   - [ErrFull] if the queue has [Cap] DELs,
//   - others, for instance if other users may write to the directory.
//
// The end of ctx ends only the wait for the lock.
func (q Queue) Put(ctx context.Context, r wire.Request, there func() bool) (queued bool, err error) {
	name, data, err := encode(r)
	if err != nil {
		return false, q.fail("put", "", err)
	}
	err = q.open("put", "", func(dir *durable.Dir) error {
		if _, err := dir.Stat(markName); err != nil {
			return err
		}
		unlock, err := lock(ctx, dir, false)
		if err != nil {
			return err
		}
		defer unlock()
		if there() {
			return nil
		}
		err = write(dir, name, data, r.Recorded)
		queued = err == nil
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = q.fail("put", "", ErrUnread)
	}
	return queued, err
}

// write writes the file unless it exists, for an attachment that was recorded at
// the same time.
func write(dir *durable.Dir, name string, data []byte, recorded time.Time) error {
	if old, err := dir.ReadFile(name, maxFile); err == nil {
		if r, err := decode(name, old); err == nil && r.Recorded.Equal(recorded) {
			// The other writer may not have synced the directory yet.
			return dir.Sync()
		}
	}
	names, err := dir.Names()
	if err != nil {
		return err
	}
	others := 0
	for _, other := range names {
		if other != name && (isName(other, entrySuffix) || isName(other, damagedSuffix)) {
			others++
		}
	}
	if others >= Cap {
		return ErrFull
	}
	return dir.WriteFile(name, data)
}

// Read returns the request in the file. The error is [fs.ErrNotExist] if the file is
// gone, and [ErrVersion] if it was written by another version: it stays for a
// daemon of that version. Read sets a damaged file aside, see [Queue.SetAside].
func (q Queue) Read(name string) (r wire.Request, err error) {
	err = q.open("read", name, func(dir *durable.Dir) error {
		data, err := dir.ReadFile(name, maxFile)
		switch {
		case err == nil:
			if r, err = decode(name, data); err == nil || errors.Is(err, ErrVersion) {
				return err
			}
		case !errors.Is(err, durable.ErrNotRegular) && !errors.Is(err, durable.ErrTooLarge):
			return err // it may be readable later
		}
		return setAside(dir, name, err)
	})
	return r, err
}

// SetAside takes the file out of the queue: it renames it to a name that ends in
// ".corrupt". [Reader.List] reports it until somebody removes it. The error wraps
// why and [ErrDamaged], also on success.
func (q Queue) SetAside(name string, why error) error {
	return q.open("set aside", name, func(dir *durable.Dir) error { return setAside(dir, name, why) })
}

func setAside(dir *durable.Dir, name string, why error) error {
	to := strings.TrimSuffix(name, entrySuffix) + damagedSuffix
	if err := dir.Rename(name, to); err != nil {
		return fmt.Errorf("%w: %w; and cannot be set aside: %w", ErrDamaged, why, err)
	}
	return fmt.Errorf("%w, set aside as %s: %w", ErrDamaged, to, why)
}

// Has reports whether the queue has the file. An error means that this cannot be
// told.
func (q Queue) Has(name string) (bool, error) {
	err := q.open("look at", name, func(dir *durable.Dir) error {
		_, err := dir.Stat(name)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Remove removes the file, if the queue has it. Call it when a DEL of the
// attachment has been done and before the attachment can be added again. After an
// error the DEL may still be queued, and so it may after a loss of power, which
// ends all containers: the next daemon does it once more.
func (q Queue) Remove(name string) error {
	dir, err := durable.OpenDir(q.dir, q.hook) // whoever may write to it
	if err == nil {
		defer dir.Close()
		// On a read-only disk even removing a file that does not exist fails.
		_, err = dir.Stat(name)
	}
	if err == nil {
		err = dir.Remove(name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return q.fail("remove", name, err)
}

// Writable returns why no DEL can be written to the queue. It tries, and makes the
// directory if it is missing. It does not wait for the lock.
func (q Queue) Writable() error {
	q.make()
	return q.open("write to", "", (*durable.Dir).TryWrite)
}

// make makes the directory if it is missing. Whether there is one then, open tells.
func (q Queue) make() {
	if made, err := durable.MakeDir(q.dir, q.hook); err == nil {
		made.Close()
	}
}

// open calls f with the directory, unless other users may write to it. It returns the error
// of f as the one of the operation op on the file name.
func (q Queue) open(op, name string, f func(*durable.Dir) error) error {
	dir, err := durable.OpenDir(q.dir, q.hook)
	if err != nil {
		return q.fail(op, name, err)
	}
	defer dir.Close()
	info, err := os.Stat(q.dir)
	if err == nil {
		err = durable.Trusted(info) // the daemon executes what it finds there, with its own rights
	}
	if err == nil {
		err = f(dir)
	}
	return q.fail(op, name, err)
}

// lock waits for the lock of the queue, whose directory is dir. The end of the process
// releases the lock.
func lock(ctx context.Context, dir *durable.Dir, exclusive bool) (unlock func(), err error) {
	err = flock.Wait(ctx, 0, func() (bool, error) { return dir.Flock(exclusive) })
	// After closing alone, a child that has not called exec yet would keep the lock.
	return func() { _ = dir.Unflock() }, err
}
