package resident

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/fault"
)

// maxNote is the size of a note in bytes. A note is a file in StateDir that is named
// like a type. It holds the index and the name of the resident: "10-static".
const maxNote = 4 << 10

// errBefore is why a resident is gone that was there before Start.
var errBefore = errors.New("it has not connected since the host was started")

// remember notes the types of a resident. It is called before the resident serves. It
// does not write a note again, so that a resident can come back when the disk is full.
func (h *Host) remember(i Info) error {
	if h.StateDir == "" || h.Orphan < 0 {
		return nil
	}
	dir, err := durable.MakeDir(h.StateDir, nil)
	if err != nil {
		return err
	}
	defer dir.Close()
	for _, typ := range i.Types {
		if note, _, err := dir.ReadFile(typ, maxNote); err == nil && string(note) == i.String() {
			continue
		}
		err := dir.WriteFile(typ, []byte(i.String()))
		if err != nil {
			return err
		}
	}
	return nil
}

// recall reads the notes: the types of residents from before Start are kept for
// them.
func (h *Host) recall(ctx context.Context) error {
	if h.StateDir == "" {
		return nil
	}
	var names []string
	dir, err := durable.MakeDir(h.StateDir, nil)
	if err == nil {
		defer dir.Close()
		names, err = dir.Names()
	}
	if err != nil {
		return fault.Of("start", h.StateDir, err)
	}
	needed := h.needed(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, typ := range names {
		if !isType(typ) {
			continue // a temporary file
		}
		if (h.Orphan < 0 || !needed(typ)) && dir.Remove(typ) == nil {
			continue
		}
		note, _, _ := dir.ReadFile(typ, maxNote)
		i, err := named(string(note))
		if err != nil {
			i = Info{Name: typ}
		}
		s := Status{Info: i, UID: -1}.as(Gone, errBefore)
		if at := slices.IndexFunc(h.away, s.same); at >= 0 {
			s.Types = h.away[at].Types
		}
		s.Types = append(s.Types, typ)
		h.miss(s)
	}
	return nil
}

// needed returns a function that reports whether a plugin of a type takes part
// in an attachment. When the host does not know, the answer is yes.
func (h *Host) needed(ctx context.Context) func(typ string) bool {
	as, err := h.attachments(ctx)
	if err != nil || as == nil {
		return func(string) bool { return true }
	}
	types := make(map[string]bool)
	for _, a := range as {
		for n, p := range a.Network.Plugins() {
			if !slices.Contains(a.Gone, n) {
				types[p.Type()] = true
			}
		}
	}
	return func(typ string) bool { return types[typ] }
}

// released reports whether the note of a type has been removed.
func (h *Host) released(typ string) bool {
	if h.StateDir == "" {
		return false
	}
	_, err := os.Lstat(filepath.Join(h.StateDir, typ))
	return errors.Is(err, fs.ErrNotExist)
}

// giveUp forgets the residents that have been gone for Orphan, and their notes.
// The lock is held.
func (h *Host) giveUp() {
	if h.Orphan == 0 {
		return
	}
	h.away = slices.DeleteFunc(h.away, func(a Status) bool {
		if a.State != Gone || time.Since(a.Since) < h.Orphan {
			return false
		}
		for _, typ := range a.Types {
			if h.StateDir != "" && !slices.ContainsFunc(h.live, func(e *entry) bool { return slices.Contains(e.Types, typ) }) {
				_ = os.Remove(filepath.Join(h.StateDir, typ)) // otherwise the next Start keeps it again
			}
		}
		return true
	})
}

// advise adds to err how to have an executable serve a type again.
func (h *Host) advise(typ string, err error) error {
	h.mu.Lock()
	there := h.serving(typ) != nil
	h.mu.Unlock()
	if there || h.StateDir == "" || h.released(typ) {
		return err
	}
	return fmt.Errorf("%w (start it; or, to run an executable of this type instead, remove %s)", err, filepath.Join(h.StateDir, typ))
}
