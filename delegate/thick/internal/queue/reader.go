package queue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

	mark *os.File // locked, or nil
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
	r.make()
	err = r.open("list", "", func(dir *durable.Dir) error {
		unlock, err := lock(ctx, dir, true)
		if err != nil {
			return err
		}
		defer unlock()
		if err := r.claim(dir); err != nil {
			return err
		}
		names, odd, err = list(dir)
		return err
	})
	return names, r.fail("list", "", odd), err
}

// Close gives the queue up: the next List of any Reader takes it.
func (r *Reader) Close() {
	flock.Release(r.mark)
	r.mark = nil
}

// claim makes r the Reader of the queue: it locks the mark and writes it. The caller
// has the lock of dir, so nobody else claims the queue meanwhile. Who reads the mark before
// it is whole does not learn the Override.
func (r *Reader) claim(dir *durable.Dir) error {
	mine, _ := r.mark.Stat() // nil without a mark
	now, _ := os.Lstat(dir.Path(markName))
	if os.SameFile(mine, now) {
		return nil
	}
	r.Close() // the mark has been removed
	text, err := json.Marshal(markFile{markText, r.Override})
	if err != nil {
		return err
	}
	mark, err := dir.OpenFile(markName)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnread, err)
	}
	if held, err := flock.TryFile(mark); !held {
		return cmp.Or(err, ErrOther)
	}
	r.mark = mark
	if err = mark.Truncate(0); err == nil { // a reader must not see the old text mixed with the new one
		_, err = mark.WriteAt(text, 0)
	}
	if err != nil {
		r.Close()
	}
	return err
}

// list returns the sorted names of the files with a DEL in dir, whose lock the
// caller has, and what else is there.
func list(dir *durable.Dir) (names []string, odd, err error) {
	all, err := dir.Names()
	if err != nil {
		return nil, nil, err
	}
	var damaged, foreign []string
	for _, name := range all {
		switch {
		case name == markName:
		case isName(name, entrySuffix):
			names = append(names, name)
		case isName(name, damagedSuffix):
			damaged = append(damaged, name)
		case durable.IsTemp(name):
			_ = dir.Remove(name) // its writer has died: we have the lock
		default:
			foreign = append(foreign, name)
		}
	}
	var odds []error
	if len(damaged) > 0 {
		odds = append(odds, fmt.Errorf("%w and not done; remove them when you have looked at them: %s", ErrDamaged, some(damaged)))
	}
	if len(foreign) > 0 {
		odds = append(odds, fmt.Errorf("%w: %s", ErrForeign, some(foreign)))
	}
	return names, errors.Join(odds...), nil
}

// some quotes up to 8 of the names.
func some(names []string) string {
	const most = 8
	if n := len(names) - most; n > 0 {
		return fmt.Sprintf("%q and %d more", names[:most], n)
	}
	return fmt.Sprintf("%q", names)
}

// Override returns the Override of the daemon that reads the queue, or that was the
// last to do so. It is nil if the mark does not tell; a daemon without an Override
// has an empty object.
func (q Queue) Override() json.RawMessage {
	var m markFile
	_ = q.open("read", markName, func(dir *durable.Dir) error {
		text, err := dir.ReadFile(markName, maxMark)
		if err == nil {
			err = json.Unmarshal(text, &m)
		}
		return err
	})
	return m.Override
}
