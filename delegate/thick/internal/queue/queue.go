// Package queue keeps the DELs that a daemon was not there to do, as files in a
// directory. Shims write them, many at once. A daemon does them.
//
// The files are the only truth. A file that is there once [Queue.Put] has
// returned is there after a loss of power. As long as it is there, its DEL is
// owed, and the same attachment must not be added: a DEL done later would remove
// the new attachment. The file goes when a DEL of the attachment has been done,
// whoever asked for that DEL, see [Queue.Remove].
//
// A shim writes only to a directory that a daemon reads. A daemon marks the
// directory, see [Queue.List]; without the mark Put fails. So a DEL is never
// left where nobody looks, such as in a directory of the same name in another
// root.
//
// No DEL is left behind, because of the order in which both sides act. A shim
// that could not connect takes the shared lock, tries again, and only then
// writes. The daemon listens first, then takes the exclusive lock, and lists the
// files. So a shim has either written before the daemon listed, or has found the
// daemon when it tried again.
package queue

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/durable"
)

const (
	// Cap is how many DELs a queue takes. As many more as there are writers at
	// the same moment may come in.
	Cap = 256

	// maxDamaged is how many damaged files take no place in the queue.
	maxDamaged = 64
)

// markName is the file that says that a daemon reads the directory, and markText
// its content, for people.
const (
	markName = ".reader"
	markText = "A daemon does the DELs in this directory. Without this file shims leave none here.\n"
)

// A Queue is a directory of DELs, see [In]. Its methods may be called by any
// number of goroutines and processes at once. Their errors are [*Error]s, which
// quote nothing of a configuration.
type Queue struct {
	dir  string
	hook durable.Hook // nil except in tests
}

// In returns the queue in the directory dir.
func In(dir string) Queue { return Queue{dir: dir} }

// Put calls try, and writes r down if try reports that the daemon is still
// away: neither done nor an error.
//
// Call it when connecting has already failed. try must only connect: the lock
// is held meanwhile, which the daemon waits for. While the daemon has the lock,
// Put calls try again and again without it.
//
// A request for the same attachment (network, container, interface) that is
// there and undamaged is kept, and r is dropped. Put returns nil when try has
// said done, or when the request survives a loss of power; it returns try's
// error unchanged; any other error is an [*Error], and then r may have been
// written all the same. The error is [ErrUnread] when no daemon has marked the
// directory, and [ErrFull] when there are [Cap] requests. A directory that
// others may write to is refused: the daemon does what it finds there. The end
// of ctx ends the wait for the lock and nothing else.
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
	switch _, err := dir.Stat(markName); {
	case errors.Is(err, fs.ErrNotExist):
		return q.fail("put", "", ErrUnread)
	case err != nil:
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
	return q.fail("put", name, write(dir, name, data))
}

// write writes the file, unless it is there.
func write(dir *durable.Dir, name string, data []byte) error {
	if old, _, err := dir.ReadFile(name, maxFile); err == nil {
		if _, err := decode(name, old); err == nil {
			// Whoever wrote it may be about to sync, or have died before.
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
		case other == name: // damaged, and replaced: it was for the same attachment
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

// List returns the names of the files that hold a DEL, sorted, and marks the
// directory as one that a daemon reads. It makes the directory when it is
// missing. Call it once the daemon listens, and from time to time.
//
// What List passes over is told in odd, and no reason to fail: damaged files
// that were set aside ([ErrDamaged]), files that are none of the queue's
// ([ErrForeign]), and a mark that could not be written ([ErrUnread]). It removes
// nothing except temporary files of writers that died.
func (q Queue) List(ctx context.Context) (names []string, odd, err error) {
	made, err := durable.MakeDir(q.dir, q.hook)
	if err == nil {
		made.Close()
	}
	dir, err := q.open() // which may be there although it cannot be made
	if err != nil {
		return nil, nil, q.fail("list", "", err)
	}
	defer dir.Close()
	never := func() (bool, error) { return false, nil }
	_, unlock, err := q.lock(ctx, dir, exclusive, never)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	var odds []error
	if _, err := dir.Stat(markName); err != nil {
		if err := dir.WriteFile(markName, []byte(markText)); err != nil {
			odds = append(odds, q.fail("mark", "", fmt.Errorf("%w: %w", ErrUnread, err)))
		}
	}
	all, err := dir.Names()
	if err != nil {
		return nil, nil, q.fail("list", "", err)
	}
	var damaged, foreign []string
	for _, name := range all {
		switch {
		case name == markName, name == oldLockName:
		case isEntry(name):
			names = append(names, name)
		case isDamaged(name):
			damaged = append(damaged, name)
		case durable.IsTemp(name):
			_ = dir.Remove(name) // its writer is dead: we have the lock
		default:
			foreign = append(foreign, name)
		}
	}
	if len(damaged) > 0 {
		odds = append(odds, q.fail("list", "", fmt.Errorf("%w and not done, remove when looked at: %s", ErrDamaged, some(damaged))))
	}
	if len(foreign) > 0 {
		odds = append(odds, q.fail("list", "", fmt.Errorf("%w: %s", ErrForeign, some(foreign))))
	}
	return names, errors.Join(odds...), nil
}

// Read returns the request in the file name. The error is [fs.ErrNotExist] when
// the file has gone, and [ErrVersion] when it is of another version: it stays,
// for a daemon of that version. A damaged file is set aside, as by [Queue.SetAside].
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

// SetAside takes the file name out of the queue because of why, under another
// name, which ends in ".corrupt". It is there for people: [Queue.List] tells of
// it until somebody removes it. The error is why, and [ErrDamaged].
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

// Has reports whether the file name is there. An error means that this cannot
// be told.
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

// Remove removes the file name, for good, if it is there. Call it after a DEL of
// its attachment has been done and before the attachment can be added again.
// When it fails the DEL is still owed, or may be after a loss of power.
func (q Queue) Remove(name string) error {
	dir, err := durable.OpenDir(q.dir, q.hook)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return q.fail("remove", name, err)
	}
	defer dir.Close()
	// On a disk that cannot be written to, even the removal of what is not
	// there fails.
	if _, err := dir.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err = dir.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // another has paid
	}
	if err == nil {
		err = dir.Sync()
	}
	return q.fail("remove", name, err)
}

// Readable returns why the queue cannot be read, if it is there and cannot.
func (q Queue) Readable() error {
	_, err := q.Has(markName)
	return err
}

// open opens the directory, unless others may write to it.
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

// fail returns err as an [*Error], and nil as nil. An empty name is the
// directory's.
func (q Queue) fail(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Path: filepath.Join(q.dir, name), Err: err}
}

// some quotes names, but not all when there are many.
func some(names []string) string {
	const most = 8
	if n := len(names) - most; n > 0 {
		return fmt.Sprintf("%q and %d more", names[:most], n)
	}
	return fmt.Sprintf("%q", names)
}
