package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/metacni/metacni/scratch"
)

// clear removes what an interrupted operation has left of k, or what was attached for a container
// that is dead, or whose interface was certainly destroyed. netns is the path of the namespace of
// the ADD. It returns what cannot be removed of a leftover. It fails with ErrAdded when k is
// attached.
func (m *Manager) clear(ctx context.Context, l *scratch.Lock, k scratch.Key, netns string) ([]entry, error) {
	o := m.observe()
	o.given = netns
	found, err := m.lookUp(ctx, k, o)
	if err != nil {
		return nil, err
	}
	var left []entry
	for _, old := range found.keys {
		more, err := m.clearOne(ctx, l, old, o)
		if err != nil {
			return nil, err
		}
		if old == k {
			left = append(left, more...) // the record of another key keeps its own
		}
	}
	if found.refused {
		return left, m.forget(ctx, l, k)
	}
	return left, nil
}

// clearOne is clear of the record of k.
func (m *Manager) clearOne(ctx context.Context, l *scratch.Lock, k scratch.Key, o *observer) ([]entry, error) {
	r, err := m.store().Get(k)
	if err != nil {
		return nil, except(err, notThere)
	}
	if r.State.Attached() && o.judge(r.Value.Delegates).Life != Dead && !o.destroyed(r) {
		return nil, ErrAdded
	}
	_, err = m.remove(ctx, l, k, errand{given: o.given})
	if err == nil {
		return nil, nil
	}
	if r, getErr := m.store().Get(k); getErr == nil && r.State == scratch.Leftover && errors.As(err, new(*givenUpError)) {
		// If remove could not note what it did, there still are two lists.
		return slices.DeleteFunc(append(r.Value.Delegates, r.Value.Leftovers...), entry.over), nil
	}
	return nil, fmt.Errorf("what was attached before cannot be removed: %w", err)
}

// destroyed reports whether the own interface of r, which is attached, certainly exists no more.
func (o *observer) destroyed(r scratch.Record[record]) bool {
	i := slices.IndexFunc(r.Value.Delegates, func(e entry) bool { return e.IfName == r.Key.IfName && !halfDone(e) })
	return i >= 0 && o.disconnected(r.Value.Delegates[i], r.Value.Host)
}
