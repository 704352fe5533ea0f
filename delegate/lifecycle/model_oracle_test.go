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
