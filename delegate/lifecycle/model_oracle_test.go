package lifecycle

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/metacni/metacni/scratch"
)

// A model is what a Manager and its plugins are expected to do, in memory.
type model struct {
	keys    []scratch.Key
	records map[scratch.Key]*modelRecord
	live    map[string]bool
	gone    map[string]bool // plugins that have vanished
	tries   int             // Manager.DelTries
	ns      map[string]int  // the namespace of a container, by number

	// Of the operation that is under way:
	plot      plot
	ended     bool // its context
	overtaken bool
	quiet     bool // the overtaking Del: nothing goes wrong, nor ends
	undoError bool
	trace     []string
	forgotten []piece
}

// A modelRecord is a record file: the last of its lines counts.
type modelRecord struct {
	lines   []modelLine
	damaged bool // and then the last line is what there was
}

type modelLine struct {
	state  scratch.State
	pieces []piece
	tries  int     // DELs that have failed
	left   []piece // of an ADD before, which cannot be removed
}

func (r *modelRecord) now() modelLine { return r.lines[len(r.lines)-1] }

// codes are the codes of joined errors, 0 for one without: nil is no error.
type codes []uint

// code is the code of the whole.
func (cs codes) code() uint {
	if len(cs) == 0 {
		return 0
	}
	for _, c := range cs {
		if c != 0 {
			return c
		}
	}
	return 999
}

func newModel() *model {
	return &model{keys: modelKeys(), records: make(map[scratch.Key]*modelRecord), live: make(map[string]bool), gone: make(map[string]bool), ns: make(map[string]int)}
}

// do does o, and says what has come of it in the same words as world.do.
func (m *model) do(o op) string {
	m.plot, m.overtaken, m.undoError, m.trace = newPlot(o), false, false, nil
	m.ended = m.plot.at("start").kind != ""
	answer := m.answer(o)
	if m.overtaken {
		m.quiet, m.ended = true, false
		answer += fmt.Sprintf(" overtaken by %d", m.del(o.key).code())
		m.quiet = false
	}
	if m.undoError {
		answer += " and not undone"
	}
	return describe(answer, m.trace, slices.Sorted(maps.Keys(m.live)), m.stored())
}

// answer does o. A process that has died answers nothing.
func (m *model) answer(o op) (answer string) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(death); !ok {
				panic(r)
			}
			m.undoError = false
			answer = "died"
		}
	}()
	return fmt.Sprint(m.verb(o).code())
}

func (m *model) verb(o op) codes {
	r := m.records[o.key]
	switch o.verb {
	case "add":
		return m.add(o)
	case "attach":
		return m.attach(o)
	case "del":
		return m.del(o.key)
	case "check":
		return m.check(o.key)
	case "detach":
		return m.detach(o.key, o.ifname)
	case "reconcile":
		return m.reconcile(o)
	case "gc":
		return m.gc(o)
	case "sweep":
		return m.sweep(o.key)
	case "vanish":
		m.gone[o.plugin] = true
	case "return":
		clear(m.gone)
	case "reuse":
		m.ns[o.key.ContainerID]++
	case "tries":
		m.tries = o.shape
	case "damage":
		if r != nil {
			r.damaged = true
		}
	case "tear":
		if r == nil || r.damaged {
		} else if len(r.lines) == 1 {
			r.damaged = true
		} else {
			r.lines = r.lines[:len(r.lines)-1]
		}
	case "forget":
		if r != nil && r.damaged {
			m.forgotten = slices.Concat(r.now().pieces, r.now().left)
			for _, l := range m.forgotten {
				for _, p := range l.plugins {
					delete(m.live, mark(p, o.key, l))
				}
			}
			delete(m.records, o.key)
		}
	}
	return nil
}

func mark(plugin string, k scratch.Key, l piece) string {
	return plugin + " " + k.ContainerID + " " + l.ifname
}

// write replaces the record of k, note adds to it.
func (m *model) write(k scratch.Key, st scratch.State, ls, left []piece) {
	m.records[k] = &modelRecord{lines: []modelLine{{st, ls, 0, left}}}
}

func (m *model) note(k scratch.Key, st scratch.State, ls []piece) {
	m.records[k].lines = append(m.records[k].lines, modelLine{st, ls, 0, m.records[k].now().left})
}

// fault is what goes wrong at place, once it has done what that does to the
// context or to the process.
func (m *model) fault(place string) fault {
	if m.quiet {
		return fault{}
	}
	f := m.plot.at(place)
	switch f.kind {
	case "hang", "cancel":
		m.ended = true
	case "overtake":
		m.ended, m.overtaken = true, true
	case "crash":
		panic(death{})
	}
	return f
}

// find looks for a plugin.
func (m *model) find(plugin string) codes {
	m.fault("find " + plugin)
	if m.gone[plugin] {
		return codes{7}
	}
	return nil
}

// call runs a plugin. What is done to undo does not end with the context.
func (m *model) call(verb, plugin string, k scratch.Key, l piece, undo bool) codes {
	if m.ended && !undo {
		return codes{11}
	}
	if verb != "ADD" { // whose plugins are found before the first is run
		if cs := m.find(plugin); cs != nil {
			return cs
		}
	}
	line := verb + " " + plugin + " " + k.ContainerID + " " + l.ifname
	if verb == "DEL" && l.result != "" {
		line += " after " + l.result
	}
	if verb == "DEL" && l.ns != m.ns[k.ContainerID] && !undo {
		line += " without a namespace"
	}
	m.trace = append(m.trace, strings.TrimSpace(line))
	if verb == "ADD" {
		m.live[mark(plugin, k, l)] = true
	}
	f := m.fault(verb + " " + plugin)
	failed := f.kind == "error" || f.kind == "plain" || f.kind == "hang" || f.kind == "overtake"
	switch {
	case failed && m.ended && !undo:
		return codes{11}
	case f.kind == "plain":
		return codes{0}
	case failed:
		return codes{f.code()}
	}
	if verb == "DEL" {
		delete(m.live, mark(plugin, k, l))
	}
	if f.kind == "crash-after" {
		panic(death{})
	}
	if verb == "ADD" && (f.kind == "noise" || f.kind == "silence") {
		if m.ended {
			return codes{11}
		}
		return codes{6}
	}
	return nil
}

// delAll deletes the pieces of ls that are which, last first, and calls gone
// with each that has lost a plugin.
func (m *model) delAll(k scratch.Key, ls []piece, undo bool, which func(piece) bool, gone func(i int)) codes {
	var cs codes
	for i, l := range slices.Backward(ls) {
		if !which(l) {
			continue
		}
		for _, p := range slices.Backward(l.plugins) {
			if slices.Contains(ls[i].gone, p) {
				continue
			}
			if failed := m.call("DEL", p, k, l, undo); failed != nil {
				cs = append(cs, failed...)
				continue
			}
			ls[i] = ls[i].without(p)
			gone(i)
		}
	}
	return cs
}

// own is a part of a transaction that is the caller's.
func (m *model) own(place string) codes {
	switch f := m.fault(place); f.kind {
	case "error":
		return codes{f.code()}
	case "plain":
		if m.ended && place != "plan" {
			return codes{11}
		}
		return codes{0}
	case "hang":
		return codes{11}
	case "spoil":
		return codes{6}
	}
	return nil
}

// taken are the interface names in the records of k's container.
func (m *model) taken(k scratch.Key) []string {
	var taken []string
	for _, other := range m.keys {
		if r := m.records[other]; other.ContainerID == k.ContainerID && r != nil && !r.damaged && r.now().state != scratch.Leftover {
			for _, l := range r.now().pieces {
				taken = append(taken, l.ifname)
			}
		}
	}
	return taken
}

// possible says whether plan can be carried out.
func possible(plan []piece, taken []string) codes {
	taken = slices.Clone(taken)
	for _, l := range plan {
		if slices.Contains(taken, l.ifname) {
			return codes{7}
		}
		taken = append(taken, l.ifname)
	}
	if len(plan) == 0 {
		return codes{7}
	}
	return nil
}

// gcNet is the network that gc is given, if any.
var gcNet = piece{network: "blue", plugins: []string{"bridge"}}

// stored says what is recorded.
func (m *model) stored() []string {
	var all []string
	for _, k := range m.keys {
		switch r := m.records[k]; {
		case r == nil:
		case r.damaged:
			all = append(all, fmt.Sprint(k, " damaged"))
		default:
			all = append(all, describeRecord(k, r.now().state, r.now().pieces))
		}
	}
	slices.Sort(all)
	return all
}

// unrecorded is what is alive and stands in no record.
func (m *model) unrecorded() []string {
	lost := maps.Clone(m.live)
	for k, r := range m.records {
		for _, l := range slices.Concat(r.now().pieces, r.now().left) {
			for _, p := range l.plugins {
				delete(lost, mark(p, k, l))
			}
		}
	}
	return slices.SortedFunc(maps.Keys(lost), cmp.Compare)
}

// transaction attaches what o plans under k, whose record holds before already.
// It calls forget when nothing is left of it.
func (m *model) transaction(o op, before []piece, running scratch.State, forget func()) codes {
	if m.ended { // while what was there before was removed
		return codes{11}
	}
	k := o.key
	for _, other := range m.keys { // what has ended of the container's other attachments
		r := m.records[other]
		if other.ContainerID == k.ContainerID && other != k && r != nil && !r.damaged && !m.ended && r.now().state.Attached() && !m.there(other, r.now().pieces) {
			_, _ = m.remove(other)
		}
	}
	if m.ended {
		return codes{11}
	}
	taken := m.taken(k)
	m.trace = append(m.trace, fmt.Sprint("plan ", taken))
	if cs := m.own("plan"); cs != nil {
		return cs
	}
	plan := o.plan()
	var leftovers []piece
	if r := m.records[k]; r != nil {
		if leftovers = r.now().left; r.now().state == scratch.Leftover {
			leftovers = r.now().pieces
		}
	}
	end := func(cs codes) codes {
		forget()
		return cs
	}
	for asked := 0; ; asked++ {
		cs, final := possible(plan, taken), false
		if cs == nil {
			final, cs = m.try(k, before, plan, leftovers, running, o.bare)
		}
		switch {
		case cs == nil || m.undoError:
			return cs
		case final || m.ended || o.verb == "step":
			return end(cs)
		}
		m.trace = append(m.trace, "next")
		if hook := m.own("next"); hook != nil {
			return end(hook)
		}
		if m.ended {
			return end(codes{11})
		}
		if plan = o.alternative(asked); plan == nil {
			return end(cs)
		}
	}
}

// noteUndoing notes that left, after before in the record of k, is being undone.
func (m *model) noteUndoing(k scratch.Key, running scratch.State, before, left []piece) {
	state, left := scratch.Leftover, slices.Clone(left)
	if running == scratch.Partial {
		state = scratch.Partial
		for i := range left {
			left[i].half, left[i].fresh = true, true
		}
	}
	m.note(k, state, slices.Concat(before, left))
}

// try records plan after before and attaches it. final says that another plan
// would not help.
func (m *model) try(k scratch.Key, before, plan, leftovers []piece, running scratch.State, bare bool) (final bool, cs codes) {
	if m.ended {
		return true, codes{11}
	}
	mine := slices.Clone(plan)
	left := 0
	for i := range mine {
		mine[i].half, mine[i].ns = running == scratch.Partial, m.ns[k.ContainerID]
		mine[i].fresh = mine[i].half
		left += len(mine[i].plugins)
	}
	m.write(k, running, slices.Concat(before, mine), leftovers)
	for _, l := range mine {
		for _, p := range l.plugins {
			if cs := m.find(p); cs != nil {
				return false, cs
			}
		}
	}
	state := running
	for i, l := range mine {
		for j, p := range l.plugins {
			asked := len(m.trace)
			if cs := m.call("ADD", p, k, l, false); cs != nil {
				ran := slices.Clone(mine)
				ran[i].gone = l.plugins[j+len(m.trace)-asked:]
				for n := i + 1; n < len(ran); n++ {
					ran[n].gone = ran[n].plugins
				}
				cs = m.undo(k, running, before, mine, ran, cs)
				if m.undoError {
					m.noteUndoing(k, running, before, ran)
				}
				return false, cs
			}
			mine[i].result = p
			if left--; left == 0 && bare {
				mine = settled(mine)
				state = whole(before)
			}
			m.note(k, state, slices.Concat(before, mine))
		}
	}
	if !bare {
		if cs := m.own("adjust"); cs != nil {
			m.noteUndoing(k, running, before, mine)
			return false, m.undo(k, running, before, mine, slices.Clone(mine), cs)
		}
		mine = settled(mine)
		m.note(k, whole(before), slices.Concat(before, mine))
	}
	if m.ended {
		cs = codes{11}
	} else {
		cs = m.own("report")
	}
	if cs == nil {
		return true, nil
	}
	m.noteUndoing(k, running, before, mine)
	return true, m.undo(k, running, before, mine, slices.Clone(mine), cs)
}

// whole is the state of an attachment that has ls and what is settled.
func whole(ls []piece) scratch.State {
	if slices.ContainsFunc(ls, func(l piece) bool { return l.half }) {
		return scratch.Partial
	}
	return scratch.Added
}

// settled returns ls as they are once they have been added.
func settled(ls []piece) []piece {
	ls = slices.Clone(ls)
	for i := range ls {
		ls[i].half, ls[i].fresh = false, false
	}
	return ls
}

// undo deletes what is left of ran because of cause. The record of k holds known
// after before, and what is gone by and by.
func (m *model) undo(k scratch.Key, running scratch.State, before, known, ran []piece, cause codes) codes {
	known = slices.Clone(known)
	failed := m.delAll(k, ran, true, piece.left, func(i int) {
		known[i].gone = ran[i].gone
		if slices.ContainsFunc(known, piece.left) {
			m.noteUndoing(k, running, before, known)
		}
	})
	if failed == nil {
		return cause
	}
	m.undoError = true
	return codes{cause.code()}
}

func (m *model) add(o op) codes {
	k := o.key
	if m.ended {
		return codes{11}
	}
	if r := m.records[k]; r != nil {
		switch {
		case r.damaged:
			return codes{5}
		case (r.now().state == scratch.Added || r.now().state == scratch.Partial) && m.there(k, r.now().pieces):
			return codes{7}
		}
		if cs, _ := m.remove(k); cs != nil {
			r := m.records[k]
			if r.now().state != scratch.Leftover {
				return cs
			}
			left := r.now().pieces // with their files
			return m.transaction(o, nil, scratch.Planned, func() {
				r := m.records[k]
				r.lines = append(r.lines, modelLine{scratch.Leftover, left, 0, nil})
			})
		}
	}
	return m.transaction(o, nil, scratch.Planned, func() { delete(m.records, k) })
}

// modelLeaving is the state of a record in state st while ls, which it has, is removed.
func modelLeaving(st scratch.State, ls []piece) scratch.State {
	left := slices.DeleteFunc(slices.Clone(ls), func(l piece) bool { return !l.left() })
	if st == scratch.Planned || st == scratch.Leftover || len(left) > 0 && !slices.ContainsFunc(left, func(l piece) bool { return !l.fresh }) {
		return scratch.Leftover
	}
	return scratch.Deleting
}

func (m *model) attach(o op) codes {
	k := o.key
	now, cs := m.added(k)
	if cs != nil {
		return cs
	}
	kept, _ := m.drop(k, now, func(l piece) bool { return l.half }) // what stays is in nobody's way
	state := m.records[k].now().state
	return m.transaction(o, kept, scratch.Partial, func() { m.note(k, state, kept) })
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
	case r.now().state != scratch.Added && r.now().state != scratch.Partial:
		return modelLine{}, codes{7}
	}
	return r.now(), nil
}

func (m *model) drop(k scratch.Key, now modelLine, which func(piece) bool) ([]piece, codes) {
	ls, state := slices.Clone(now.pieces), now.state
	var chosen []int
	for i, l := range ls {
		if which(l) {
			chosen = append(chosen, i)
		}
	}
	if chosen == nil {
		return ls, nil
	}
	note := func() {
		m.records[k].lines = append(m.records[k].lines, modelLine{state, slices.Clone(ls), now.tries, now.left})
	}
	if (state == scratch.Added || state == scratch.Partial) && slices.ContainsFunc(chosen, func(i int) bool { return !ls[i].half }) {
		state = scratch.Partial
		for _, i := range chosen {
			ls[i].half = true
		}
		note()
	}
	cs := m.delAll(k, ls, false, which, func(int) {
		if slices.ContainsFunc(chosen, func(i int) bool { return ls[i].left() }) {
			note()
		}
	})
	if cs != nil {
		return ls, cs
	}
	kept := slices.DeleteFunc(ls, which)
	if state == scratch.Partial {
		state = whole(kept)
	}
	ls = kept
	note()
	return kept, nil
}

func (m *model) detach(k scratch.Key, ifname string) codes {
	if ifname == k.IfName {
		return codes{7}
	}
	r, cs := m.recorded(k)
	if r == nil {
		return cs
	}
	_, cs = m.drop(k, r.now(), func(l piece) bool { return l.ifname == ifname })
	return cs
}

// recorded returns the record of k, or nil and what an operation answers that has
// none to work on.
func (m *model) recorded(k scratch.Key) (*modelRecord, codes) {
	r := m.records[k]
	switch {
	case m.ended:
		return nil, codes{11}
	case r != nil && r.damaged:
		return nil, codes{5}
	}
	return r, nil
}

func (m *model) del(k scratch.Key) codes {
	r, cs := m.recorded(k)
	if r == nil {
		return cs
	}
	cs, givenUp := m.remove(k)
	if givenUp {
		return nil
	}
	return cs
}

// remove deletes what is recorded under k. When that has failed often enough and
// the namespace is gone it is given up, and the record stays.
func (m *model) remove(k scratch.Key) (cs codes, givenUp bool) {
	now := m.records[k].now()
	ls := slices.Clone(now.pieces)
	note := func() {
		m.records[k].lines = append(m.records[k].lines, modelLine{now.state, slices.Clone(ls), now.tries, now.left})
	}
	for {
		if st := modelLeaving(now.state, ls); st == scratch.Leftover && now.left != nil {
			now.state, now.tries, ls, now.left = st, 0, alike(slices.Concat(ls, now.left)), nil
			note()
		} else if st != now.state {
			now.state = st
			note()
		}
		used := m.usedBeside(k)
		which := func(l piece) bool { return now.state != scratch.Leftover || !slices.Contains(used, l.ifname) }
		if slices.ContainsFunc(ls, func(l piece) bool { return !which(l) }) { // each has a file
			cs = append(cs, 0)
		}
		cs = append(cs, m.delAll(k, ls, false, func(l piece) bool { return l.left() && which(l) }, func(int) {
			if slices.ContainsFunc(ls, func(l piece) bool { return l.left() && which(l) }) {
				note()
			}
		})...)
		if cs != nil || now.left == nil {
			break
		}
		now.state, ls = scratch.Leftover, nil
	}
	if cs == nil {
		delete(m.records, k)
		return nil, false
	}
	now.state = modelLeaving(now.state, ls)
	now.tries++
	note()
	return cs, now.state == scratch.Leftover || m.tries > 0 && now.tries >= m.tries && !m.there(k, ls)
}

// usedBeside are the interfaces in the other records of k's container, but leftovers.
func (m *model) usedBeside(k scratch.Key) (names []string) {
	for _, other := range m.keys {
		r := m.records[other]
		switch {
		case other == k || other.ContainerID != k.ContainerID || r == nil:
			continue
		case r.damaged: // its key is in the name of its file
			names = append(names, other.IfName)
			continue
		case r.now().state == scratch.Leftover:
			continue
		}
		for _, l := range r.now().pieces {
			names = append(names, l.ifname)
		}
	}
	return names
}

// there reports whether one of ls is in the network namespace that the container has now.
func (m *model) there(k scratch.Key, ls []piece) bool {
	return slices.ContainsFunc(ls, func(l piece) bool { return l.ns == m.ns[k.ContainerID] })
}

func (m *model) check(k scratch.Key) codes {
	now, cs := m.added(k)
	if cs != nil {
		return cs
	}
	for _, l := range now.pieces {
		if l.half {
			continue
		}
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
	unrecorded, foreign := make(map[string]bool), false
	further := make(map[string]bool) // networks of other interfaces than the runtime's
	for _, v := range o.valid {
		own := scratch.Key{Network: o.key.Network, ContainerID: v.ContainerID, IfName: v.IfName}
		if m.records[own] == nil {
			unrecorded[v.ContainerID+"/"+v.IfName] = true
		}
		foreign = foreign || !slices.ContainsFunc(m.keys, func(k scratch.Key) bool {
			return k.ContainerID == v.ContainerID && k.IfName == v.IfName && m.records[k] != nil && !failed[k]
		})
	}
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
			if k.Network != o.key.Network {
				continue
			}
			further[l.network] = further[l.network] || l.ifname != k.IfName
			if !slices.ContainsFunc(to, same) {
				to = append(to, l)
			}
		}
	}
	if !known {
		return cs
	}
	if foreign && slices.ContainsFunc(to, func(n piece) bool { return further[n.network] }) {
		cs = append(cs, 11)
	}
	for _, n := range to {
		if foreign && further[n.network] {
			continue
		}
		left[n.network] = slices.AppendSeq(left[n.network], maps.Keys(unrecorded))
		slices.Sort(left[n.network])
		left[n.network] = slices.Compact(left[n.network])
		for _, p := range n.plugins {
			// The names of what remains stand where others have an interface.
			cs = append(cs, m.call("GC", p, scratch.Key{ContainerID: n.network}, piece{ifname: fmt.Sprint(left[n.network])}, false)...)
		}
	}
	return cs
}

// alike returns ls without those that are recorded exactly like one before.
func alike(ls []piece) (distinct []piece) {
	seen := make(map[string]bool)
	for _, l := range ls {
		sorted := l
		sorted.gone = slices.Sorted(slices.Values(l.gone))
		if text := fmt.Sprint(sorted, l.fresh, l.ns); !seen[text] {
			seen[text] = true
			distinct = append(distinct, l)
		}
	}
	return distinct
}
