package resident

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/metacni/metacni/internal/durable"
)

// A note is the content of a file in StateDir. The name of the file is a type.
type note struct {
	Index  string `json:"index"`
	Name   string `json:"name"`
	Source Source `json:"source"`
}

const maxNote = 4 << 10 // bytes

// errBefore is why a resident is gone that was there before Start.
var errBefore = errors.New("it has not connected since the host was started")

// remember notes the types of e. It is called before e serves.
func (h *Host) remember(e *entry) error {
	if h.StateDir == "" || h.Orphan < 0 {
		return nil
	}
	dir, err := durable.MakeDir(h.StateDir, nil)
	if err != nil {
		return fmt.Errorf("noting its types: %w", err)
	}
	defer dir.Close()
	data, err := json.Marshal(note{e.Index, e.Name, e.Source})
	for _, typ := range e.Types {
		if known, _, readErr := dir.ReadFile(typ, maxNote); readErr == nil && bytes.Equal(known, data) {
			continue // so that a resident can come back when the disk is full
		}
		if err == nil {
			err = dir.WriteFile(typ, data)
		}
	}
	if err != nil {
		return fmt.Errorf("noting its types: %w", err)
	}
	return nil
}

// recall reads the notes: the types of residents from before Start are kept for
// them.
func (h *Host) recall(ctx context.Context) error {
	if h.StateDir == "" {
		return nil
	}
	dir, err := durable.MakeDir(h.StateDir, nil)
	if err != nil {
		return &Error{Op: "start", Which: h.StateDir, Err: err}
	}
	defer dir.Close()
	names, err := dir.Names()
	if err != nil {
		return &Error{Op: "start", Which: h.StateDir, Err: err}
	}
	slices.Sort(names)
	needed := h.needed(ctx)
	missed := make(map[string]Status)
	for _, typ := range names {
		if !isType(typ) {
			continue // a temporary file
		}
		a := Status{Info: Info{Name: typ}, State: Gone, UID: -1, Since: time.Now(), Err: errBefore}
		var n note
		data, _, err := dir.ReadFile(typ, maxNote)
		if err == nil && json.Unmarshal(data, &n) == nil && isIndex(n.Index) && isName(n.Name) {
			if (h.Orphan < 0 || !needed(typ)) && dir.Remove(typ) == nil {
				continue
			}
			a.Index, a.Name, a.Source = n.Index, n.Name, n.Source
		}
		if m, ok := missed[a.String()]; ok {
			a = m
		}
		a.Types = append(a.Types, typ)
		missed[a.String()] = a
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range missed {
		h.miss(a)
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
	now := time.Now()
	h.away = slices.DeleteFunc(h.away, func(a Status) bool {
		if now.Sub(a.Since) < h.Orphan {
			return false
		}
		for _, typ := range a.Types {
			if h.StateDir != "" && h.serving(typ) == nil {
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
