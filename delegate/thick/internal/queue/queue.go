// Package queue keeps the DELs that a daemon was not there to do, as files in a
// directory, until it is. Writers are shims, many at once; the reader is the
// daemon. A file that is there once Put has returned is there after a loss of
// power, and goes only when what it says is done.
//
// That no DEL is left behind takes both sides, and the order they do things in.
// A shim that could not connect takes the shared lock, tries again, and only
// then writes its DEL down. The daemon listens first, then takes the exclusive
// lock and reads. So a shim that writes has done so before the daemon read, or
// has found it when it tried again.
//
// The daemon holds the lock until it has done what it read, not just while it
// reads. Otherwise it could take a file away, done, just after a shim had found
// that file there and reported its own DEL as written down. No shim waits for
// that: while the lock is the daemon's, Put keeps trying to connect, and the
// daemon is there to be connected to.
package queue

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/durable"
)

// Cap is how many DELs a queue takes. As many more as there are writers at the
// same moment may come in.
const Cap = 256

// maxDamaged is how many damaged files are kept for people to look at.
const maxDamaged = 64

// lockName is the file in the directory that is locked. It stays.
const lockName = ".lock"

// Put calls try, and writes r down in the directory dir if that reports that
// the daemon is away still: neither done nor an error. It makes dir when it is
// missing. One that others may write to is refused: the daemon does what it
// finds there.
//
// Call it when connecting has already been tried in vain. try must do no more
// than connect: the lock is held meanwhile, which the daemon waits for. While
// somebody else has the exclusive lock try is called again and again without
// it.
//
// A request for the same attachment (network, container, interface) that is
// there and undamaged is kept, and r is dropped. Put returns nil when try has
// said done, or when the request survives a loss of power; try's error as it is;
// otherwise an [*Error], and then r may have been written all the same. It is
// [ErrFull] when there are [Cap] requests. The end of ctx ends the wait for the
// lock, nothing else.
func Put(ctx context.Context, dir string, r wire.Request, try func() (done bool, err error)) error {
	return queue{dir: dir}.put(ctx, r, try)
}

// Replay calls do for each request in the directory dir, width at a time in
// the order of the files' names, and removes those for which it returned nil.
// It returns how many are left, and why. A missing directory has none.
//
// Call it once the daemon listens. It holds the exclusive lock until it returns,
// so one Replay waits for the other. After a crash do is called again for what
// it has done already. When ctx ends nothing more is begun, and the rest is
// left; do has to heed ctx itself.
//
// A damaged file is set aside under a name ending in ".corrupt". It is not
// counted as left, but is named in an [ErrDamaged] by this and every later
// Replay until somebody removes it. Other files are ignored, but for temporary
// ones of writers that died, which are removed.
//
// The error joins what went wrong, in the order of names, as [*Error]s. It may
// be there with nothing left, and says nothing of a configuration unless an
// error of do does.
func Replay(ctx context.Context, dir string, width int, do func(context.Context, wire.Request) error) (left int, err error) {
	return queue{dir: dir}.replay(ctx, width, do)
}

type queue struct {
	dir  string
	hook durable.Hook // nil but in tests
}

func (q queue) put(ctx context.Context, r wire.Request, try func() (bool, error)) error {
	name, data, err := encode(r)
	if err != nil {
		return q.fail("put", "", err)
	}
	dir, err := durable.MakeDir(q.dir, q.hook)
	if err != nil {
		return q.fail("put", "", err)
	}
	defer dir.Close()
	l, err := q.open(dir)
	if err != nil {
		return q.fail("put", "", err)
	}
	defer l.release()
	done, err := l.acquire(ctx, shared, try)
	if err == nil && !done {
		done, err = try() // under the lock
	}
	if done || err != nil {
		return err
	}
	return q.fail("put", name, write(dir, name, data))
}

// write puts the file down, unless it is there.
func write(dir *durable.Dir, name string, data []byte) error {
	if old, _, err := dir.ReadFile(name, maxFile); err == nil {
		if _, err := decode(old); err == nil {
			// Whoever wrote it may be about to sync, or have died before it did.
			return dir.Sync()
		}
	}
	names, err := dir.Names()
	if err != nil {
		return err
	}
	n := 0
	for _, other := range names {
		// A damaged one is replaced: it was for the same attachment.
		if other != name && isEntry(other) {
			n++
		}
	}
	if n >= Cap {
		return ErrFull
	}
	return dir.WriteFile(name, data)
}

// open returns the open lock, not held, of the queue in dir.
func (q queue) open(dir *durable.Dir) (*lock, error) {
	if err := private(q.dir); err != nil {
		return nil, err
	}
	// Whoever is first may have made the directory, and not yet what keeps it
	// after a loss of power. The lock's file says that this has been done.
	if _, err := dir.Stat(lockName); err != nil {
		if err := q.syncAbove(); err != nil {
			return nil, err
		}
	}
	file, _, err := dir.OpenFile(lockName)
	if err != nil {
		return nil, err
	}
	return &lock{file}, nil
}

// syncAbove makes the directory itself survive a loss of power.
func (q queue) syncAbove() error {
	for path := filepath.Clean(q.dir); path != filepath.Dir(path); {
		path = filepath.Dir(path)
		above, err := durable.OpenDir(path, q.hook)
		if errors.Is(err, fs.ErrPermission) {
			return nil // what we may not open has not been made by us
		}
		if err != nil {
			return err
		}
		err = above.Sync()
		above.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// fail returns err as an [*Error], and nil as nil. An empty name is the
// directory's.
func (q queue) fail(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Path: filepath.Join(q.dir, name), Err: err}
}
