package queue

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/flock"
)

// markName is the file that marks a directory that a daemon reads. The daemon keeps
// it locked.
const (
	markName = ".reader"
	markText = "A daemon does the DELs in this directory. Without this file shims leave none here."

	maxMark = 4 << 20 // bytes
)

// A markFile is the content of the file markName.
type markFile struct {
	About    string          `json:"about"`              // for people
	Override json.RawMessage `json:"override,omitempty"` // of the daemon; missing if it is not known
}

// A Reader is the daemon's end of a queue. A queue has one Reader at a time: the
// first that calls [Reader.List], until it calls [Reader.Close] or its process ends.
// Its methods must not be called by several goroutines at once.
type Reader struct {
	Queue

	// Override is the daemon's, for shims that do a DEL themselves, see
	// [Queue.Override].
	Override json.RawMessage

	file *os.File // the locked mark, or nil
	id   durable.ID
}

// List returns the sorted names of the files with a DEL, and marks the directory as
// one that a daemon reads. It makes the directory if it is missing. Call List when
// the daemon listens, and from time to time. It fails with [ErrOther] while another
// Reader has the queue.
//
// odd tells of problems that do not make List fail: damaged files that were set
// aside ([ErrDamaged]) and files that do not belong to the queue ([ErrForeign]).
// List removes nothing except temporary files of writers that died.
func (r *Reader) List(ctx context.Context) (names []string, odd, err error) {
	made, err := durable.MakeDir(r.dir, r.hook)
	if err == nil {
		made.Close()
	}
	dir, err := r.open() // it may exist although it cannot be made
	if err != nil {
		return nil, nil, r.fail("list", "", err)
	}
	defer dir.Close()
	never := func() (bool, error) { return false, nil }
	_, unlock, err := r.lock(ctx, dir, exclusive, never)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	if err := r.claim(dir); err != nil {
		return nil, nil, r.fail("mark", "", err)
	}
	return r.list(dir)
}

// Close gives the queue up: the next List of any Reader takes it.
func (r *Reader) Close() {
	if r.file != nil {
		// After closing alone, a child that has not called exec yet would keep the lock.
		_ = flock.Unlock(int(r.file.Fd()))
		_ = r.file.Close()
		r.file = nil
	}
}

// claim makes r the Reader of the queue: it writes the mark and locks it. The caller
// has the lock of dir, so nobody else claims the queue or writes a mark meanwhile.
func (r *Reader) claim(dir *durable.Dir) error {
	if now, err := dir.Stat(markName); err == nil && r.file != nil && now.ID == r.id {
		return nil
	}
	var want bytes.Buffer
	e := json.NewEncoder(&want)
	e.SetEscapeHTML(false)
	if err := e.Encode(markFile{markText, r.Override}); err != nil {
		return err
	}
	r.Close() // the mark has been removed
	is, _, err := dir.ReadFile(markName, maxMark)
	if !errors.Is(err, fs.ErrNotExist) {
		if err := r.take(dir); err != nil {
			return err
		}
		if bytes.Equal(is, want.Bytes()) {
			return nil
		}
	}
	if err := dir.WriteFile(markName, want.Bytes()); err != nil {
		r.Close()
		return fmt.Errorf("%w: %w", ErrUnread, err)
	}
	r.Close()
	return r.take(dir)
}

// take locks the mark.
func (r *Reader) take(dir *durable.Dir) error {
	fd, id, err := dir.OpenLock(markName)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), dir.Path(markName))
	held, err := flock.Try(fd, true)
	if !held {
		_ = file.Close() // nothing was written
		if err == nil {
			err = ErrOther
		}
		return err
	}
	r.file, r.id = file, id
	return nil
}

// Override returns the Override of the daemon that reads the queue, or that was the
// last to do so. It is nil if the mark does not tell; a daemon without an Override
// has an empty object.
func (q Queue) Override() json.RawMessage {
	dir, err := q.open()
	if err != nil {
		return nil
	}
	defer dir.Close()
	text, _, err := dir.ReadFile(markName, maxMark)
	var m markFile
	if err != nil || json.Unmarshal(text, &m) != nil {
		return nil
	}
	return m.Override
}
