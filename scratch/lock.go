package scratch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/metacni/metacni/internal/durable"
)

const (
	firstWait   = time.Millisecond
	longestWait = 25 * time.Millisecond
)

// A Lock is a held lock of one container, from [Store.Lock]. Its methods may be
// called by several goroutines at once. Whoever loses it without Unlock holds
// the lock until the process ends.
type Lock struct {
	dir, container string

	root *durable.Dir
	name string // of the file in root
	id   durable.ID

	mu   sync.Mutex // guards what follows
	file *os.File   // nil once released
	end  int64      // of what is written in file
}

// File returns the lock's file, to be handed to children: a child that has it
// open keeps the lock when this process dies, and loses it with [Lock.Unlock].
// Do not close it. After Unlock File returns nil.
func (l *Lock) File() *os.File {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file
}

// Started writes down that the child pid, which leads a process group of its
// own and has the lock's file open, works under the lock, so that
// [Store.KillOrphans] can end the group when this process has died. Call it
// before waiting for the child.
//
// When it fails the child works under the lock all the same, but others will
// have to wait for it: that is no reason to stop the child.
func (l *Lock) Started(pid int) error {
	return fail("record a child of", Key{ContainerID: l.container}, l.started(pid))
}

func (l *Lock) started(pid int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return os.ErrClosed
	}
	start, err := startTime(pid)
	if err != nil {
		return err
	}
	text := ""
	if l.end == 0 {
		// Who we are matters only when we leave somebody behind, so a lock that
		// starts nothing is not made to pay for it.
		me, err := self()
		if err != nil {
			return err
		}
		text = me.String()
	}
	text += process{pid: pid, start: start}.String()
	durable.Step("pwrite", l.name)
	n, err := l.file.WriteAt([]byte(text), l.end)
	if err == nil {
		l.end += int64(n)
	}
	return err
}

// Unlock releases the lock, every copy of its file that a child has inherited
// included, and removes the file. The second and every later call does nothing
// and returns nil. When Unlock fails the lock is released all the same, and the
// file may have been left.
func (l *Lock) Unlock() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	var errs []error
	// Only while we hold the lock is the file's name certainly ours to remove.
	switch now, err := l.root.Stat(l.name); {
	case err == nil && now.ID == l.id:
		errs = append(errs, unlink(l.root, l.name))
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		errs = append(errs, err)
	}
	// Closing alone would leave the lock to whoever has inherited the file.
	errs = append(errs, unflock(l.file), l.file.Close())
	l.root.Close()
	l.file = nil
	return fail("unlock", Key{ContainerID: l.container}, errors.Join(errs...))
}

// holds reports whether l is held, for that container of the store in dir.
func (l *Lock) holds(dir, container string) bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file != nil && l.dir == dir && l.container == container
}

func (f files) lock(ctx context.Context, id string) (*Lock, error) {
	if err := checkContainer(id); err != nil {
		return nil, err
	}
	root, err := f.make()
	if err != nil {
		return nil, err
	}
	l := &Lock{dir: f.dir, container: id, root: root, name: lockName(id)}
	if err := l.acquire(ctx); err != nil {
		root.Close()
		return nil, err
	}
	return l, nil
}

// acquire waits for the lock.
func (l *Lock) acquire(ctx context.Context) error {
	wait := firstWait
	for first := true; ; first = false {
		if ctx.Err() != nil {
			return ended(ctx)
		}
		if held, err := l.try(first); held || err != nil {
			return err
		}
		if !pause(ctx, wait) {
			return ended(ctx)
		}
		wait = min(2*wait, longestWait)
	}
}

// try takes the lock if it is free. It opens the file anew every time, because
// whoever releases the lock removes the file.
func (l *Lock) try(first bool) (held bool, err error) {
	file, id, err := l.root.OpenFile(l.name)
	if err != nil {
		return false, err
	}
	defer func() {
		if !held {
			_ = file.Close()
		}
	}()
	free, err := flock(file)
	if err != nil {
		return false, err
	}
	if !free {
		if first && inherited(file, id) {
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
	if now.Size > 0 {
		// A holder that died wrote this. Its numbers may be used again, and it
		// is we who start processes now.
		durable.Step("ftruncate", l.name)
		if err := file.Truncate(0); err != nil {
			return false, err
		}
	}
	l.file, l.id = file, id
	return true, nil
}

// pause waits, and reports false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// ended returns why ctx ended, as an error that is ctx.Err() too.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// A process is one that had pid at a time: numbers are used again.
type process struct {
	pid   int
	start uint64 // clock ticks since boot, /proc/PID/stat field 22
}

// An owner is the process that holds a lock. A pid means something in its
// namespace only.
type owner struct {
	process
	pidns uint64 // inode number
}

func (p process) String() string { return fmt.Sprintf("group %d %d\n", p.pid, p.start) }

func (o owner) String() string { return fmt.Sprintf("owner %d %d %d\n", o.pid, o.start, o.pidns) }
