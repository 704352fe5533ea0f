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
// directory, see [Reader.List]; without the mark Put fails. So no DEL is left in a
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
	"time"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/durable"
)

const (
	// Cap is how many DELs a queue accepts. With several writers at once, each
	// may add one more.
	Cap = 256

	// maxDamaged is how many damaged files do not count towards Cap.
	maxDamaged = 64
)

// A Queue is a directory of DELs, see [In]. Its methods may be called by any
// number of goroutines and processes at once. Their errors have a CNI code, and
// quote nothing of a configuration.
type Queue struct {
	dir  string
	hook durable.Hook // nil except in tests
}

// In returns the queue in the directory dir.
func In(dir string) Queue { return Queue{dir: dir} }

// Put calls try and writes r if try reports that the daemon is still away, by
// returning false and nil.
//
// Call Put when connecting has failed before. try must only connect, because Put
// holds the lock meanwhile, and the daemon waits for it. While the daemon has the
// lock, Put calls try repeatedly without it.
//
// If the queue has an undamaged request for the same attachment (network,
// container, interface, time of the record), Put keeps that one and drops r. Put
// returns nil when try has returned true, or when the request survives a loss of
// power. It returns an error of try unchanged. After other errors r may have been
// written nevertheless:
//   - [ErrUnread] if no daemon has marked the directory,
//   - [ErrFull] if the queue has [Cap] requests,
//   - others, for instance if other users may write to the directory.
//
// The end of ctx ends only the wait for the lock.
func (q Queue) Put(ctx context.Context, r wire.Request, try func() (done bool, err error)) error {
	name, data, err := encode(r)
	if err != nil {
		return q.fail("put", "", err)
	}
	dir, err := q.open()
	if errors.Is(err, fs.ErrNotExist) {
		err = ErrUnread
	}
	if err != nil {
		return q.fail("put", "", err)
	}
	defer dir.Close()
	if _, err := dir.Stat(markName); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = ErrUnread
		}
		return q.fail("put", "", err)
	}
	done, unlock, err := q.lock(ctx, dir, shared, try)
	if err != nil || done {
		return err
	}
	defer unlock()
	if done, err := try(); done || err != nil {
		return err
	}
	return q.fail("put", name, write(dir, name, data, r.Recorded))
}

// write writes the file unless it exists, for an attachment that was recorded at
// the same time.
func write(dir *durable.Dir, name string, data []byte, recorded time.Time) error {
	if old, _, err := dir.ReadFile(name, maxFile); err == nil {
		if r, err := decode(name, old); err == nil && r.Recorded.Equal(recorded) {
			// The other writer may not have synced the directory yet.
			return dir.Sync()
		}
	}
	names, err := dir.Names()
	if err != nil {
		return err
	}
	entries, damaged := 0, 0
	for _, other := range names {
		switch {
		case other == name: // replaced by data
		case isEntry(other):
			entries++
		case isDamaged(other):
			damaged++
		}
	}
	if entries+max(damaged-maxDamaged, 0) >= Cap {
		return ErrFull
	}
	return dir.WriteFile(name, data)
}

// list returns the sorted names of the files with a DEL in dir, whose lock the
// caller has.
func (q Queue) list(dir *durable.Dir) (names []string, odd, err error) {
	var odds []error
	all, err := dir.Names()
	if err != nil {
		return nil, nil, q.fail("list", "", err)
	}
	var damaged, foreign []string
	for _, name := range all {
		switch {
		case name == markName:
		case isEntry(name):
			names = append(names, name)
		case isDamaged(name):
			damaged = append(damaged, name)
		case durable.IsTemp(name):
			_ = dir.Remove(name) // its writer has died: we have the lock
		default:
			foreign = append(foreign, name)
		}
	}
	if len(damaged) > 0 {
		odds = append(odds, q.fail("list", "", fmt.Errorf("%w and not done; remove them when you have looked at them: %s", ErrDamaged, some(damaged))))
	}
	if len(foreign) > 0 {
		odds = append(odds, q.fail("list", "", fmt.Errorf("%w: %s", ErrForeign, some(foreign))))
	}
	return names, errors.Join(odds...), nil
}

// Read returns the request in the file. The error is [fs.ErrNotExist] if the file is
// gone, and [ErrVersion] if it was written by another version: it stays for a
// daemon of that version. Read sets a damaged file aside, see [Queue.SetAside].
func (q Queue) Read(name string) (wire.Request, error) {
	var r wire.Request
	dir, err := q.open()
	if err != nil {
		return r, q.fail("read", name, err)
	}
	defer dir.Close()
	data, _, err := dir.ReadFile(name, maxFile)
	switch {
	case errors.Is(err, durable.ErrNotRegular), errors.Is(err, durable.ErrTooLarge):
	case err != nil:
		return r, q.fail("read", name, err) // it may be readable later
	default:
		if r, err = decode(name, data); err == nil || errors.Is(err, ErrVersion) {
			return r, q.fail("read", name, err)
		}
	}
	return wire.Request{}, q.fail("read", name, setAside(dir, name, err))
}

// SetAside takes the file out of the queue: it renames it to a name that ends in
// ".corrupt". [Reader.List] reports it until somebody removes it. The error wraps
// why and [ErrDamaged], also on success.
func (q Queue) SetAside(name string, why error) error {
	dir, err := q.open()
	if err != nil {
		return q.fail("set aside", name, errors.Join(why, err))
	}
	defer dir.Close()
	return q.fail("set aside", name, setAside(dir, name, why))
}

func setAside(dir *durable.Dir, name string, why error) error {
	to := damagedName(name)
	if err := dir.Rename(name, to); err != nil {
		return fmt.Errorf("%w: %w; and cannot be set aside: %w", ErrDamaged, why, err)
	}
	return errors.Join(fmt.Errorf("%w, set aside as %s: %w", ErrDamaged, to, why), dir.Sync())
}

// Has reports whether the queue has the file. An error means that this cannot be
// told.
func (q Queue) Has(name string) (bool, error) {
	dir, err := q.open()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, q.fail("look at", "", err)
	}
	defer dir.Close()
	_, err = dir.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, q.fail("look at", name, err)
}

// Remove removes the file, durably, if the queue has it. Call it when a DEL of the
// attachment has been done and before the attachment can be added again. After an
// error the DEL may still be queued.
func (q Queue) Remove(name string) error {
	dir, err := durable.OpenDir(q.dir, q.hook)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return q.fail("remove", name, err)
	}
	defer dir.Close()
	// On a read-only disk even removing a file that does not exist fails.
	if _, err := dir.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err = dir.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // another process has removed it
	}
	if err == nil {
		err = dir.Sync()
	}
	return q.fail("remove", name, err)
}

// Writable returns why no DEL can be written to the queue. It tries, and makes the
// directory if it is missing.
func (q Queue) Writable() error {
	made, err := durable.MakeDir(q.dir, q.hook)
	if err == nil {
		made.Close()
	}
	dir, err := q.open() // it may exist although it cannot be made
	if err != nil {
		return q.fail("write to", "", err)
	}
	defer dir.Close()
	return q.fail("write to", "", dir.TryWrite())
}

// open opens the directory unless other users may write to it.
func (q Queue) open() (*durable.Dir, error) {
	dir, err := durable.OpenDir(q.dir, q.hook)
	if err != nil {
		return nil, err
	}
	if err := private(q.dir); err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// some quotes up to 8 of the names.
func some(names []string) string {
	const most = 8
	if n := len(names) - most; n > 0 {
		return fmt.Sprintf("%q and %d more", names[:most], n)
	}
	return fmt.Sprintf("%q", names)
}
