package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/metacni/metacni/scratch"
)

// clear removes what an interrupted operation has left of k, or what was attached to
// a network namespace that is gone, or has lost its interface. It returns what cannot
// be removed of a leftover. It fails with ErrAdded when k is attached.
func (m *Manager) clear(ctx context.Context, l *scratch.Lock, k scratch.Key) ([]entry, error) {
	r, err := m.store().Get(k)
	e := errand{}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case r.State.Attached():
		var over bool
		if over, e.others = m.ended(r); !over {
			return nil, ErrAdded
		}
	}
	_, err = m.remove(ctx, l, k, e)
	if err == nil {
		return nil, nil
	}
	if r, getErr := m.store().Get(k); getErr == nil && r.State == scratch.Leftover && errors.As(err, new(*givenUpError)) {
		// If remove could not note what it did, there still are two lists.
		return slices.DeleteFunc(append(r.Value.Delegates, r.Value.Leftovers...), entry.over), nil
	}
	return nil, fmt.Errorf("what was attached before cannot be removed: %w", err)
}

// ended reports whether r, which is attached, is to be removed although no DEL came: its
// network namespace is gone or, by the act of others, its interface.
func (m *Manager) ended(r scratch.Record[record]) (over, others bool) {
	if m.record(r).over() == everything {
		return true, false
	}
	others = m.lost(r)
	return others, others
}

// there returns the records of k's container without the damaged ones. First it removes the
// other attachments that have ended: a later DEL might remove what this ADD makes.
func (m *Manager) there(ctx context.Context, k scratch.Key, l *scratch.Lock) ([]scratch.Record[record], error) {
	read := func() ([]scratch.Record[record], error) {
		rs, err := m.store().Container(ctx, k.ContainerID)
		return rs, except(err, func(err error) bool {
			return errors.Is(err, scratch.ErrCorrupt) || errors.Is(err, scratch.ErrVersion)
		})
	}
	rs, err := read()
	cleared := false
	for _, r := range rs {
		if r.Key == k || !r.State.Attached() || ctx.Err() != nil {
			continue
		}
		if over, others := m.ended(r); over {
			_, _ = m.remove(ctx, l, r.Key, errand{others: others}) // if it fails the record stays, and its names are in use
			cleared = true
		}
	}
	if cleared {
		return read()
	}
	return rs, err
}

// lost reports whether the interface of r, which is attached, is certainly not in its
// network namespace any more. Its result must have it there, with an address: not
// every plugin makes an interface.
func (m *Manager) lost(r scratch.Record[record]) bool {
	i := slices.IndexFunc(r.Value.Delegates, func(e entry) bool { return e.IfName == r.Key.IfName && !halfDone(e) })
	if i < 0 {
		return false
	}
	e := r.Value.Delegates[i]
	var result struct {
		Interfaces []struct{ Name, Mac, Sandbox string }
	}
	_ = json.Unmarshal(e.Result, &result) // if it fails there are none
	made := false
	for _, there := range result.Interfaces {
		made = made || there.Name == e.IfName && there.Mac != "" && there.Sandbox != ""
	}
	if !made {
		return false
	}
	names, err := m.interfaceNames(e.NetNS.forDel(looking(m.Root), ""))
	return err == nil && len(names) > 0 && !slices.Contains(names, e.IfName)
}
