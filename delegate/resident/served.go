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

// served is what a file of StateDir says of the type that it is called by.
type served struct {
	Index  string `json:"index"`
	Name   string `json:"name"`
	Source Source `json:"source"`
}

// maxServed is the most that is read of such a file, in bytes.
const maxServed = 4 << 10

// errBefore is why a resident is not there that was before Start.
var errBefore = errors.New("it has not come back since the host was started")

// remember notes, before e is called, which types are e's.
func (r *Host) remember(e *entry) error {
	if r.StateDir == "" || r.Orphan < 0 {
		return nil
	}
	dir, err := durable.MakeDir(r.StateDir, nil)
	if err != nil {
		return fmt.Errorf("noting its types: %w", err)
	}
	defer dir.Close()
	data, err := json.Marshal(served{e.Index, e.Name, e.source})
	for _, typ := range e.Types {
		if known, _, readErr := dir.ReadFile(typ, maxServed); readErr == nil && bytes.Equal(known, data) {
			continue // a full disk does not keep a resident from coming back
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

// recall enters what residents have served before Start, as theirs still.
func (r *Host) recall(ctx context.Context) error {
	if r.StateDir == "" {
		return nil
	}
	dir, err := durable.MakeDir(r.StateDir, nil)
	if err != nil {
		return &Error{Op: "recall", Which: r.StateDir, Err: err}
	}
	defer dir.Close()
	names, err := dir.Names()
	if err != nil {
		return &Error{Op: "recall", Which: r.StateDir, Err: err}
	}
	slices.Sort(names)
	needed := r.attached(ctx)
	missed := make(map[string]*away)
	var order []*away
	for _, typ := range names {
		if !isType(typ) {
			continue // a temporary file
		}
		a := away{Info: Info{Name: typ}, since: time.Now(), why: errBefore}
		var who served
		data, _, err := dir.ReadFile(typ, maxServed)
		if err == nil && json.Unmarshal(data, &who) == nil && isIndex(who.Index) && isName(who.Name) {
			if (r.Orphan < 0 || !needed(typ)) && dir.Remove(typ) == nil {
				continue
			}
			a.Info, a.source = Info{Index: who.Index, Name: who.Name}, who.Source
		}
		its := missed[a.String()]
		if its == nil {
			its = &a
			missed[a.String()] = its
			order = append(order, its)
		}
		its.Types = append(its.Types, typ)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range order {
		r.miss(*a)
	}
	return nil
}

// attached returns a function that reports whether something is attached by a
// plugin of a type. Where that is not known, it says that it is.
func (r *Host) attached(ctx context.Context) func(typ string) bool {
	all := func(string) bool { return true }
	if r.Attachments == nil {
		return all
	}
	ctx, cancel := context.WithTimeout(ctx, r.registerTimeout())
	defer cancel()
	as, err := r.Attachments(ctx)
	if err != nil {
		return all
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

// released reports whether somebody has removed the note of a type.
func (r *Host) released(typ string) bool {
	if r.StateDir == "" {
		return false
	}
	_, err := os.Lstat(filepath.Join(r.StateDir, typ))
	return errors.Is(err, fs.ErrNotExist)
}

// giveUp forgets the residents that have been gone for a time, and what is noted
// of their types. The lock is held.
func (r *Host) giveUp(after time.Duration) {
	now := time.Now()
	r.away = slices.DeleteFunc(r.away, func(a away) bool {
		if now.Sub(a.since) < after {
			return false
		}
		for _, typ := range a.Types {
			if r.StateDir != "" && r.serving(typ) == nil {
				_ = os.Remove(filepath.Join(r.StateDir, typ)) // or it is kept once more after a restart
			}
		}
		return true
	})
}

// advise adds to err, of a call of a type, what to do when its resident does not
// come back.
func (r *Host) advise(typ string, err error) error {
	r.mu.Lock()
	there := r.serving(typ) != nil
	r.mu.Unlock()
	if there || r.StateDir == "" || r.released(typ) {
		return err
	}
	return fmt.Errorf("%w (to have an executable serve this type again, remove %s)", err, filepath.Join(r.StateDir, typ))
}
