package scratch

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/metacni/metacni/internal/cause"
	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/flock"
)

// The mode of a lock's file says how many records its container can have, so
// that Unlock need not look. A mode is raised before the record is written.
const (
	modeNone = 0o400  // none
	modeOne  = 0o600  // at most one
	modeMany = 0o1600 // any number, as with every other mode
)

// unknownMost is Lock.most when nothing is known.
const unknownMost = -1

// A Lock is a held lock of one container, from [Store.Lock]. Goroutines may call
// its methods at the same time. Without Unlock, the lock is held until the process
// and every child that has [Lock.File] have ended.
type Lock struct {
	dir, container string

	root *durable.Dir
	name string // of the file in root
	id   durable.ID

	mu   sync.Mutex // guards what follows, and is held while a method works
	fd   int        // not an *os.File, which the garbage collector would close; -1 once released
	mode uint32
	// linked says that the file has another name: it is somebody else's too,
	// so its mode is neither believed nor changed.
	linked bool
	// most is how many records the container has at most, or unknownMost.
	most int
	// removed says that a record was to be removed.
	removed bool
	// known holds records that are there and whole.
	known map[Key]extent
}

// An extent says where the text of a record ends in its file, and how large the file may
// become by notes. The limit is 0 if the length of the record itself is not known.
type extent struct{ end, limit int64 }

// File returns a new descriptor of the lock's file for child processes. Use it to
// keep the lock until the last descendant exits: a child that has the file open
// keeps the lock when this process dies. [Lock.Unlock] releases it all the same.
// The caller closes the file. File returns nil after Unlock, and when the system
// has no descriptor left.
func (l *Lock) File() *os.File {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd < 0 {
		return nil
	}
	fd, err := dup(l.fd)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), l.root.Path(l.name))
}

// Unlock releases the lock, also for children that have inherited its file, and
// removes the file when the container has no record left. Later calls do nothing
// and return nil. When Unlock fails, the lock is released all the same, and the
// file may be left.
func (l *Lock) Unlock() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd < 0 {
		return nil
	}
	err := l.tidy()
	// Closing alone would leave the lock to whoever has inherited the file.
	err = errors.Join(err, unflock(l.fd, l.root.Path(l.name)))
	closeFD(l.fd)
	l.root.Close()
	l.fd = -1
	return fail("unlock", Key{ContainerID: l.container}, err)
}

// tidy removes the lock's file when the container has no record.
func (l *Lock) tidy() error {
	if len(l.known) > 0 || l.most != 0 && !l.removed {
		return nil // whoever left the file there had a record
	}
	if l.most != 0 {
		names, err := l.names()
		if err != nil || len(names) > 0 {
			return err
		}
	}
	// Only while we hold the lock is the file's name certainly ours to give up.
	now, err := l.root.Stat(l.name)
	if err != nil || now.ID != l.id {
		return gone(err)
	}
	return gone(l.root.Remove(l.name))
}

// begin keeps the lock until end. It fails unless l is held, for that container
// of the store in dir.
func (l *Lock) begin(dir, container string) error {
	if l == nil {
		return errNotHeld
	}
	l.mu.Lock()
	if l.fd >= 0 && l.dir == dir && samePart(l.container, container) {
		return nil
	}
	l.mu.Unlock()
	return errNotHeld
}

func (l *Lock) end() { l.mu.Unlock() }

// saw notes that k's record is there and whole.
func (l *Lock) saw(k Key, end int64) {
	l.known[k] = extent{end: end}
	if l.most >= 0 && l.most < len(l.known) {
		// Somebody has removed the lock's file and with it what it said.
		l.most = unknownMost
		_ = l.mark(modeMany) // if it fails the next one will see this too
	}
}

// grow says that one more record is about to be written.
func (l *Lock) grow() error {
	if l.most >= 0 {
		l.most++
	}
	if l.most == 1 {
		return l.mark(modeOne)
	}
	return l.mark(modeMany)
}

// mark raises the mode of the lock's file.
func (l *Lock) mark(mode uint32) error {
	if l.linked || l.mode == mode || l.mode == modeMany {
		return nil
	}
	err := l.root.Chmod(l.fd, l.name, mode)
	if err == nil {
		l.mode = mode
	}
	return err
}

func (f files) lock(ctx context.Context, id string) (*Lock, error) {
	if err := checkStoredContainer(id); err != nil {
		return nil, err
	}
	root, err := f.make()
	if err != nil {
		return nil, err
	}
	l := &Lock{dir: f.dir, container: id, root: root, name: lockName(id), fd: -1, known: map[Key]extent{}}
	first := true
	err = acquire(ctx, func() (bool, error) {
		defer func() { first = false }()
		return l.try(first)
	})
	if err != nil {
		root.Close()
		return nil, err
	}
	return l, nil
}

// acquire calls try until it has the lock, or fails, or ctx ends.
func acquire(ctx context.Context, try func() (bool, error)) error {
	if err := cause.Of(ctx); err != nil {
		return err
	}
	return flock.Wait(ctx, try)
}

// try takes the lock if it is free. It opens the file again every time, because
// whoever releases the lock may remove the file.
func (l *Lock) try(first bool) (held bool, err error) {
	fd, id, err := l.root.OpenLock(l.name, modeNone)
	if err != nil {
		return false, err
	}
	defer func() {
		if !held {
			closeFD(fd)
		}
	}()
	free, err := tryFlock(fd, l.root.Path(l.name))
	if err != nil {
		return false, err
	}
	if !free {
		if first && (lockFile{l.name, id}).inherited() {
			return false, ErrNested
		}
		return false, nil
	}
	// Between open and flock the last holder may have removed the file.
	now, err := l.root.Stat(l.name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && now.ID != id {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	l.fd, l.id, l.mode, l.linked = fd, id, now.Mode, now.Links != 1
	l.most = unknownMost
	switch {
	case l.linked:
	case l.mode == modeNone:
		l.most = 0
	case l.mode == modeOne:
		l.most = 1
	}
	return true, nil
}

// A DirLock is the held lock of a directory, from [Store.LockDir]. Goroutines may call
// its methods at the same time. Without Unlock, the lock is held until the process and
// every child that has [DirLock.File] have ended.
type DirLock struct {
	mu   sync.Mutex
	root *durable.Dir // nil once released
}

// File is [Lock.File] for the lock of a directory.
func (l *DirLock) File() *os.File {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.root == nil {
		return nil
	}
	return l.root.File()
}

// Unlock releases the lock, also for children that have inherited its file. Later
// calls do nothing and return nil.
func (l *DirLock) Unlock() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.root == nil {
		return nil
	}
	err := l.root.Unflock()
	l.root.Close()
	l.root = nil
	return fail("unlock", Key{}, err)
}

// lockDir takes the lock of the whole directory.
func (f files) lockDir(ctx context.Context, exclusive bool) (*DirLock, error) {
	root, err := f.make()
	if err != nil {
		return nil, err
	}
	err = acquire(ctx, func() (bool, error) { return root.Flock(exclusive) })
	if err != nil {
		root.Close()
		return nil, err
	}
	return &DirLock{root: root}, nil
}

// tryFlock takes the lock on fd, the file at path, without waiting.
func tryFlock(fd int, path string) (bool, error) {
	durable.Step("flock", filepath.Base(path))
	free, err := flock.Try(fd, true)
	return free, pathError(path, err)
}

func unflock(fd int, path string) error {
	durable.Step("unflock", filepath.Base(path))
	return pathError(path, flock.Unlock(fd))
}

func pathError(path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: "flock", Path: path, Err: err}
}
