package resident

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/fault"
)

// errBefore is why a resident is gone that was there before Start.
var errBefore = errors.New("it has not connected since the host was started")

// errDropped is why no resident has a type that one has served.
var errDropped = errors.New("it does not serve these types any more")

// recall reserves the types that residents have served before Start, unless it is
// certain that no attachment uses them.
func (h *Host) recall(ctx context.Context) error {
	noted, err := h.notes().list()
	if err != nil {
		return fault.Of("start", h.StateDir, err)
	}
	needed, err := h.known(ctx, noted)
	certain := err == nil && h.Attachments != nil
	reserved := slices.DeleteFunc(noted, func(typ string) bool {
		used := slices.ContainsFunc(needed, func(k Known) bool { return k.Type == typ })
		if !used && certain {
			h.notes().remove(typ)
		}
		return !used && certain
	})
	if len(reserved) > 0 {
		h.note(Status{Info: Info{Types: reserved}, UID: -1}.as(Gone, errBefore))
	}
	return nil
}

// owns reports whether only residents serve a type.
func (h *Host) owns(typ string) bool {
	if slices.Contains(h.Reserve, typ) {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.serving(typ) != nil || slices.ContainsFunc(h.missing(), func(a Status) bool { return slices.Contains(a.Types, typ) })
}

// missing returns the residents that have gone, with the types that are reserved for them, and the
// files of Dir that do not serve. The lock is held.
func (h *Host) missing() (all []Status) {
	if h.phase != stopped {
		h.giveUp()
	}
	for _, a := range h.away {
		if a.State == Gone && h.phase != stopped {
			a = a.without(h.notes().released)
		}
		if a.State != Gone || len(a.Types) > 0 {
			all = append(all, a)
		}
	}
	return all
}

// Plugins lists the residents in order: those that are connected, those that have
// gone and whose types are reserved, and the files of Dir that do not serve. The types
// that residents have served before Start, and those that a resident has served before it
// came back without them, are those of one without a name. A refused
// connection is not in the list; see [Host.Observer].
func (h *Host) Plugins() (all []Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.connected() {
		all = append(all, e.Status)
	}
	connected := all
	for _, a := range h.missing() {
		if !slices.ContainsFunc(connected, a.same) {
			all = append(all, a)
		}
	}
	slices.SortStableFunc(all, func(a, b Status) int {
		return cmp.Or(strings.Compare(a.Index, b.Index), strings.Compare(a.Name, b.Name), strings.Compare(a.Path, b.Path))
	})
	return all
}

// giveUp forgets the residents that have been gone for Orphan, and their notes.
// The lock is held.
func (h *Host) giveUp() {
	h.away = slices.DeleteFunc(h.away, func(a Status) bool {
		if h.Orphan == 0 || a.State != Gone || time.Since(a.Since) < h.Orphan {
			return false
		}
		for _, typ := range a.Types {
			if !slices.ContainsFunc(h.live, func(e *entry) bool { return slices.Contains(e.Types, typ) }) {
				h.notes().remove(typ) // otherwise the next Start reserves it again
			}
		}
		return true
	})
}

// A noteDir is a directory of notes, see Host.StateDir. A note is an empty file that is
// named like a type. The empty noteDir keeps no notes.
type noteDir string

// keep notes types. It does not write a note again, so that a resident can come back
// when the disk is full.
func (d noteDir) keep(types []string) error {
	if d == "" {
		return nil
	}
	dir, err := durable.MakeDir(string(d), nil)
	if err != nil {
		return err
	}
	defer dir.Close()
	for _, typ := range types {
		if info, err := dir.Stat(typ); err == nil && info.IsFile {
			continue
		}
		if err := dir.WriteFile(typ, nil); err != nil {
			return err
		}
	}
	return nil
}

// list returns the types that are noted. It makes the directory.
func (d noteDir) list() ([]string, error) {
	if d == "" {
		return nil, nil
	}
	dir, err := durable.MakeDir(string(d), nil)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Names()
	return slices.DeleteFunc(names, func(name string) bool { return !isType(name) }), err // such as temporary files
}

// remove removes the note of a type. It does not matter if that fails: the next Start
// reserves the type again.
func (d noteDir) remove(typ string) {
	if d != "" {
		_ = os.Remove(filepath.Join(string(d), typ))
	}
}

// released reports whether the note of a type has been removed. While the directory is not there
// nobody knows.
func (d noteDir) released(typ string) bool {
	if d == "" {
		return false
	}
	_, err := os.Lstat(filepath.Join(string(d), typ))
	_, dirErr := os.Stat(string(d))
	return errors.Is(err, fs.ErrNotExist) && dirErr == nil
}
