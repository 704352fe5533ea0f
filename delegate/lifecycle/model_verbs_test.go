package lifecycle

import (
	"fmt"
	"slices"

	"github.com/metacni/metacni/scratch"
)

// run attaches plan, which is recorded after before. It returns what is
// recorded of plan when that cannot be undone.
func (m *model) run(k scratch.Key, before, plan []piece) ([]piece, codes) {
	for _, l := range plan {
		for _, p := range l.plugins {
			if cs := m.find(p); cs != nil {
				return nil, cs
			}
		}
	}
	for i, l := range plan {
		for j, p := range l.plugins {
			asked := len(m.trace)
			if cs := m.call("ADD", p, k, l, false); cs != nil {
				part := l
				part.plugins = l.plugins[:j+len(m.trace)-asked]
				return plan, m.undo(k, append(slices.Clone(plan[:i]), part), cs)
			}
		}
	}
	added := slices.Clone(plan)
	for i := range added {
		added[i].added = true
	}
	cs := m.own("adjust")
	if cs == nil {
		m.note(k, scratch.Added, slices.Concat(before, added))
		if m.ended {
			cs = codes{11}
		} else {
			cs = m.own("report")
		}
	}
	if cs != nil {
		undoing, state := slices.Clone(added), scratch.Deleting
		for i := range undoing {
			undoing[i].leaving = true
		}
		if len(before) > 0 {
			state = scratch.Added
		}
		m.note(k, state, slices.Concat(before, undoing))
		return added, m.undo(k, added, cs)
	}
	return nil, nil
}

func (m *model) add(o op) codes {
	k, plan := o.key, o.plan()
	if m.ended {
		return codes{11}
	}
	if r := m.records[k]; r != nil {
		switch {
		case r.damaged:
			return codes{5}
		case r.now().state == scratch.Added:
			return codes{7}
		}
		if cs, _ := m.remove(k); cs != nil {
			return cs
		}
	}
	if cs := m.planned(k, plan); cs != nil {
		return cs
	}
	m.write(k, scratch.Planned, plan)
	left, cs := m.run(k, nil, plan)
	switch {
	case cs == nil:
	case m.undoError:
		m.note(k, scratch.Deleting, left)
	default:
		delete(m.records, k)
	}
	return cs
}

func (m *model) attach(o op) codes {
	k, plan := o.key, o.plan()
	kept, cs := m.settled(k)
	if cs == nil {
		cs = m.planned(k, plan)
	}
	if cs != nil {
		return cs
	}
	m.write(k, scratch.Added, slices.Concat(kept, plan))
	left, cs := m.run(k, kept, plan)
	switch {
	case cs == nil:
	case m.undoError:
		left = slices.Clone(left)
		for i := range left {
			left[i].leaving = true
		}
		m.note(k, scratch.Added, slices.Concat(kept, left))
	default:
		m.note(k, scratch.Added, kept)
	}
	return cs
}

// added returns the record of k if it is one of an added attachment.
func (m *model) added(k scratch.Key) (modelLine, codes) {
	r := m.records[k]
	switch {
	case m.ended:
		return modelLine{}, codes{11}
	case r == nil:
		return modelLine{}, codes{7}
	case r.damaged:
		return modelLine{}, codes{5}
	case r.now().state != scratch.Added:
		return modelLine{}, codes{7}
	}
	return r.now(), nil
}

// settled removes what an Attach has left in the record of k.
func (m *model) settled(k scratch.Key) ([]piece, codes) {
	now, cs := m.added(k)
	if cs != nil {
		return nil, cs
	}
	return m.drop(k, now, func(l piece) bool { return !l.added || l.leaving })
}

func (m *model) drop(k scratch.Key, now modelLine, which func(piece) bool) ([]piece, codes) {
	var gone, kept []piece
	for _, l := range now.pieces {
		if which(l) {
			gone = append(gone, l)
		} else {
			kept = append(kept, l)
		}
	}
	if gone == nil {
		return kept, nil
	}
	cs := m.delAll(k, gone, false)
	if cs == nil {
		m.note(k, now.state, kept)
	}
	return kept, cs
}

func (m *model) detach(k scratch.Key, ifname string) codes {
	r := m.records[k]
	switch {
	case ifname == k.IfName:
		return codes{7}
	case m.ended:
		return codes{11}
	case r == nil:
		return nil
	case r.damaged:
		return codes{5}
	}
	_, cs := m.drop(k, r.now(), func(l piece) bool { return l.ifname == ifname })
	return cs
}

func (m *model) del(k scratch.Key) codes {
	r := m.records[k]
	switch {
	case m.ended:
		return codes{11}
	case r == nil:
		return nil
	case r.damaged:
		return codes{5}
	}
	cs, skipped := m.remove(k)
	if skipped {
		return nil
	}
	return cs
}

// remove deletes what is recorded under k. Plugins that are missing are skipped
// when they have been missed often enough, and the record stays.
func (m *model) remove(k scratch.Key) (cs codes, skipped bool) {
	now := m.records[k].now()
	if now.state != scratch.Deleting {
		m.note(k, scratch.Deleting, now.pieces)
	}
	cs = m.delAll(k, now.pieces, false)
	if cs == nil {
		delete(m.records, k)
	} else if m.skip > 0 && !slices.ContainsFunc(cs, func(c uint) bool { return c != 7 }) {
		m.records[k].lines = append(m.records[k].lines, modelLine{scratch.Deleting, now.pieces, now.missed + 1})
		skipped = now.missed+1 >= m.skip
	}
	return cs, skipped
}

func (m *model) check(k scratch.Key) codes {
	now, cs := m.added(k)
	if cs != nil {
		return cs
	}
	if !now.whole() {
		return codes{7}
	}
	for _, l := range now.pieces {
		for _, p := range l.plugins {
			if cs := m.call("CHECK", p, k, l, false); cs != nil {
				return cs
			}
		}
	}
	return nil
}

func (m *model) gc(o op) codes {
	if m.plot.at("nil").kind != "" {
		return codes{7}
	}
	stale := func(k scratch.Key) bool {
		return k.Network == o.key.Network && !slices.ContainsFunc(o.valid, func(v scratch.Key) bool {
			return v.ContainerID == k.ContainerID && v.IfName == k.IfName
		})
	}
	var cs codes
	failed := make(map[scratch.Key]bool)
	for _, k := range m.keys {
		if r := m.records[k]; r != nil && !r.damaged && stale(k) && !m.ended {
			more, _ := m.remove(k)
			failed[k] = more != nil
			cs = append(cs, more...)
		}
	}
	if m.ended {
		return append(cs, 11)
	}
	known := true
	var to []piece
	if o.nets {
		to = append(to, gcNet)
	}
	left := make(map[string][]string)
	for _, k := range m.keys {
		r := m.records[k]
		switch {
		case r == nil || failed[k]:
			continue
		case r.damaged:
			cs = append(cs, 5)
			known = known && stale(k)
			continue
		}
		for _, l := range r.now().pieces {
			left[l.network] = append(left[l.network], k.ContainerID+"/"+l.ifname)
			same := func(n piece) bool { return n.network == l.network && slices.Equal(n.plugins, l.plugins) }
			if k.Network == o.key.Network && !slices.ContainsFunc(to, same) {
				to = append(to, l)
			}
		}
	}
	if !known {
		return cs
	}
	for _, n := range to {
		slices.Sort(left[n.network])
		for _, p := range n.plugins {
			// The names of what remains stand where others have an interface.
			cs = append(cs, m.call("GC", p, scratch.Key{ContainerID: n.network}, piece{ifname: fmt.Sprint(left[n.network])}, false)...)
		}
	}
	return cs
}
