package history

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// A phase is how much of an attachment there is.
type phase byte

const (
	absent   phase = iota // nothing, and no record
	half                  // a record, and nobody knows what of it is there
	attached              // all of it
)

// A state is one attachment of a container, as the answers of the SDK describe it: the
// interface that the runtime asked for, and two that are attached and detached later.
// While it is not attached, the two are part of what is half there.
type state struct {
	own    phase
	hot    [2]phase
	born   int64 // the call of the ADD that made it
	queued bool  // its DEL is in the queue, and is tried and done at any time
}

// The answers of an operation. None ("") means that the process died, or that the daemon did:
// it has done everything, a part, or nothing.
const (
	done     = "ok"
	added    = "added"     // refused: the attachment is there
	notAdded = "not-added" // refused: the attachment is not there
	taken    = "taken"     // refused: the interface name is in use
	failed   = "failed"    // and, if it was an ADD, undone
	stuck    = "stuck"     // failed, and could not be undone
	later    = "later"     // code 11: not begun, or cancelled and undone
	queuable = "ok-queued" // a DEL that was done, or is in the queue
	unsure   = "unsure"    // failed or stuck: a shim does not tell
	lost     = "lost"      // code 11 of a shim: as if there were no answer
)

// An input is an operation, as one attachment sees it.
type input struct {
	verb  string
	hot   int    // which interface ATTACH and DETACH are about
	valid bool   // it is in the list of GC
	alone bool   // no other operation on the attachment overlaps
	call  int64  // when it was called
	begun int64  // when a GC had read the records, at the latest
	look  string // LOOK: what was there when nothing ran
}

// startingIn returns the model of an attachment that is in one of these states at first.
func startingIn(first ...state) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() (all []any) {
			for _, s := range first {
				all = append(all, s)
			}
			return all
		},
		Step: func(s, in, answer any) (all []any) {
			for _, next := range s.(state).after(in.(input), answer.(string)) {
				all = append(all, next)
			}
			return all
		},
		Hash: func(s any) uint64 { return s.(state).hash() },
	}
	return m.ToModel()
}

// everyState returns all states of an attachment that is older than every operation.
func everyState() []state {
	all := []state{{}, {own: half}}
	for _, first := range []phase{absent, half, attached} {
		for _, second := range []phase{absent, half, attached} {
			all = append(all, state{own: attached, hot: [2]phase{first, second}})
		}
	}
	for _, s := range all[1:] {
		s.queued = true
		all = append(all, s)
	}
	return all
}

func (s state) hash() uint64 {
	h := uint64(s.own) + 3*uint64(s.hot[0]) + 9*uint64(s.hot[1]) + 27*uint64(s.born)
	if s.queued {
		h = ^h
	}
	return h * 0x9e3779b97f4a7c15 // so that a set of states has few collisions
}

// after returns the states that an operation with this answer may leave. None means that the
// answer is wrong.
func (s state) after(in input, answer string) []state {
	if !s.queued {
		return s.step(in, answer)
	}
	return slices.Concat(s.step(in, answer), s.left().step(in, answer), state{}.step(in, answer))
}

func (s state) step(in input, answer string) []state {
	switch in.verb {
	case "ADD":
		return s.add(in, answer)
	case "DEL":
		return s.del(answer)
	case "CHECK":
		return s.only(answer == later || answer == "" || answer == done && s.own == attached || answer == notAdded && s.own != attached)
	case "GC":
		return s.gc(in, answer)
	case "SWEEP":
		return s.sweep()
	case "ATTACH":
		return s.attach(in.hot, answer)
	case "DETACH":
		return s.detach(in.hot, answer)
	case "LOOK":
		return s.only(in.look == s.seen() && !s.queued)
	}
	return nil
}

// only returns s, if it may be.
func (s state) only(may bool) []state {
	if may {
		return []state{s}
	}
	return nil
}

// left is s when its removal has begun.
func (s state) left() state { return state{own: half, born: s.born, queued: s.queued} }

// An ADD attaches what is not attached. What is half there is removed first.
func (s state) add(in input, answer string) []state {
	whole, part := state{own: attached, born: in.call}, state{own: half, born: in.call}
	switch {
	case answer == added || s.own == attached:
		return s.only(s.own == attached && (answer == added || answer == later || answer == ""))
	case answer == done:
		return []state{whole}
	case answer == failed && s.own == half:
		return []state{{}, s}
	case answer == failed:
		return []state{{}}
	case answer == stuck:
		return []state{part}
	case answer == unsure:
		return []state{s, {}, part}
	case answer == later:
		return []state{s, {}}
	case answer == "":
		return []state{s, {}, part, whole}
	}
	return nil
}

// A DEL that has succeeded leaves nothing, and one that has failed leaves a record.
func (s state) del(answer string) []state {
	waits := s
	waits.queued = s.own != absent
	switch {
	case answer == done:
		return []state{{}}
	case answer == queuable:
		return []state{{}, waits}
	case answer == later:
		return []state{s}
	case answer == failed && s.own != absent:
		return []state{s.left()}
	case answer == "" && s.own != absent:
		return []state{s, s.left(), {}, waits}
	}
	return s.only(answer == "")
}

// A GC removes what is not in the list, unless it came after the GC had read the records. What
// another operation changes meanwhile may stay.
func (s state) gc(in input, answer string) []state {
	switch {
	case answer != done && answer != failed && answer != later && answer != "":
		return nil
	case in.valid || s.own == absent || s.born > in.begun:
		return []state{s}
	case answer == done && in.alone:
		return []state{{}}
	case answer == done:
		return []state{s, {}}
	}
	return []state{s, s.left(), {}}
}

// A sweep removes what is half there, if that does not fail.
func (s state) sweep() []state {
	if s.own == half {
		return []state{s, {}}
	}
	return s.tidied()
}

// tidied returns s with some of the hot interfaces removed that are half there.
func (s state) tidied() []state {
	all := []state{s}
	for i := range s.hot {
		for _, t := range all {
			if t.hot[i] == half {
				t.hot[i] = absent
				all = append(all, t)
			}
		}
	}
	return all
}

// An ATTACH first removes what is half there.
func (s state) attach(i int, answer string) (all []state) {
	if s.own != attached {
		return s.only(answer == notAdded || answer == later || answer == "")
	}
	for _, t := range s.tidied() {
		if answer == taken && t.hot[i] != absent || answer == later || answer == "" {
			all = append(all, t)
		}
		if t.hot[i] != absent {
			continue
		}
		if answer == failed {
			all = append(all, t)
		}
		if answer == stuck || answer == "" {
			t.hot[i] = half
			all = append(all, t)
		}
		if answer == done || answer == "" {
			t.hot[i] = attached
			all = append(all, t)
		}
	}
	return all
}

// A DETACH of an interface that is not there succeeds.
func (s state) detach(i int, answer string) (all []state) {
	if s.own != attached {
		return s.only(answer == done || answer == later || answer == "" || answer == failed && s.own == half)
	}
	if answer == later || answer == "" {
		all = append(all, s)
	}
	gone, left := s, s
	gone.hot[i], left.hot[i] = absent, half
	if answer == done || answer == "" {
		all = append(all, gone)
	}
	if s.hot[i] != absent && (answer == failed || answer == "") {
		all = append(all, left)
	}
	return all
}

// seen describes s as [node.look] does.
func (s state) seen() string {
	name := [...]string{"absent", "half", "attached"}
	if s.own != attached {
		return name[s.own]
	}
	return strings.Join([]string{name[s.own], name[s.hot[0]], name[s.hot[1]]}, ",")
}

// story makes a part of lines such as "0-5 ADD: ok". An answer that is missing is not known;
// the operation then has its effect until its end, or at any time if it ends at "...".
func story(t *testing.T, lines ...string) part {
	t.Helper()
	p := part{key: "c/eth0", first: []state{{}}}
	for i, line := range lines {
		what, answer, _ := strings.Cut(line, ":")
		f := strings.Fields(what)
		call, ret, _ := strings.Cut(f[0], "-")
		o := op{id: strconv.Itoa(i), verb: f[1], key: p.key, arg: strings.Join(f[2:], ""), answer: strings.TrimSpace(answer), ret: forever, begun: forever}
		var err error
		o.call, err = strconv.ParseInt(call, 10, 64)
		nodetest.OK(t, err)
		if o.verb == "GC" {
			o.begun = o.call
		}
		if ret != "..." {
			o.ret, err = strconv.ParseInt(ret, 10, 64)
			nodetest.OK(t, err)
		}
		p.ops = append(p.ops, o)
	}
	return p
}

func TestModel(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		legal bool
		story []string
	}{
		{"a life", true, []string{"0-1 ADD: ok", "2-3 CHECK: ok", "4-5 DEL: ok", "6-7 CHECK: not-added", "8-9 LOOK absent: ok"}},
		{"attached twice", false, []string{"0-1 ADD: ok", "2-3 ADD: ok"}},
		{"refused, and nothing is there", false, []string{"0-1 ADD: added"}},
		{"beside its DEL", true, []string{"0-1 ADD: ok", "2-9 DEL: ok", "3-4 CHECK: ok", "5-6 CHECK: not-added"}},
		{"it comes back", false, []string{"0-1 ADD: ok", "2-9 DEL: ok", "3-4 CHECK: not-added", "5-6 CHECK: ok"}},
		{"a DEL that did nothing", false, []string{"0-1 ADD: ok", "2-3 DEL: ok", "4-5 ADD: added"}},
		{"a DEL that failed leaves a record", false, []string{"0-1 ADD: ok", "2-3 DEL: failed", "4-5 LOOK absent: ok"}},
		{"a DEL of nothing fails", false, []string{"0-1 DEL: failed"}},
		{"an ADD that was killed has attached it", true, []string{"0-1 ADD:", "2-3 CHECK: ok"}},
		{"it is dead by then", false, []string{"0-1 ADD:", "2-3 CHECK: not-added", "4-5 CHECK: ok"}},
		{"it may not be dead", true, []string{"0-... ADD:", "2-3 CHECK: not-added", "4-5 CHECK: ok"}},
		{"an ADD that is undone", false, []string{"0-1 ADD: failed", "2-3 LOOK half: ok"}},
		{"an ADD that is not", true, []string{"0-1 ADD: stuck", "2-3 LOOK half: ok"}},
		{"a queued DEL is done later", true, []string{"0-1 ADD: ok", "2-3 DEL: ok-queued", "4-5 CHECK: ok", "6-7 LOOK absent: ok"}},
		{"a queued DEL is lost", false, []string{"0-1 ADD: ok", "2-3 DEL: ok-queued", "4-5 CHECK: ok", "6-7 LOOK attached,absent,absent: ok"}},
		{"a queued DEL removes the next attachment", false, []string{"0-1 ADD: ok", "2-3 DEL: ok-queued", "4-5 ADD: ok", "6-7 CHECK: not-added"}},
		{"GC", true, []string{"0-1 ADD: ok", "2-3 GC: ok", "4-5 CHECK: not-added"}},
		{"GC leaves what is not valid", false, []string{"0-1 ADD: ok", "2-3 GC: ok", "4-5 CHECK: ok"}},
		{"GC removes what is valid", false, []string{"0-1 ADD: ok", "2-3 GC c/eth0: ok", "4-5 CHECK: not-added"}},
		{"GC removes what is newer", false, []string{"0-9 GC: ok", "2-3 ADD: ok", "4-5 CHECK: not-added"}},
		{"GC leaves what changes meanwhile", true, []string{"0-1 ADD: ok", "2-9 GC: ok", "3-4 ATTACH hot0: ok", "5-6 CHECK: ok", "10-11 LOOK attached,attached,absent: ok"}},
		{"one more network", true, []string{"0-1 ADD: ok", "2-3 ATTACH hot1: ok", "4-5 ATTACH hot1: taken", "6-7 DETACH hot1: ok", "8-9 LOOK attached,absent,absent: ok"}},
		{"it is lost", false, []string{"0-1 ADD: ok", "2-3 ATTACH hot1: ok", "4-5 LOOK attached,absent,absent: ok"}},
		{"it is attached twice", false, []string{"0-1 ADD: ok", "2-3 ATTACH hot1: ok", "4-5 ATTACH hot1: ok"}},
		{"a DETACH that failed", false, []string{"0-1 ADD: ok", "2-3 ATTACH hot1: ok", "4-5 DETACH hot1: failed", "6-7 LOOK attached,absent,attached: ok"}},
		{"an answer that nobody knows", false, []string{"0-1 ADD: panic"}},
	} {
		if p := story(t, tt.story...); p.illegal(0) == tt.legal {
			t.Errorf("%s: want legal %t:\n%s", tt.name, tt.legal, p)
		}
	}
}

// Of a long history with a violation, the operations are left that are it.
func TestShrink(t *testing.T) {
	t.Parallel()
	p := story(t, "0-1 ADD: ok", "2-3 CHECK: ok", "4-5 DEL: ok", "6-7 SWEEP: ok", "8-9 ADD: ok", "10-15 CHECK: ok", "11-14 ATTACH hot0: ok", "16-17 ADD: ok", "18-19 DEL: ok", "20-21 CHECK: not-added")
	var left []string
	for _, o := range p.shrink().ops {
		left = append(left, o.id)
	}
	nodetest.Equal(t, "what is left", left, []string{"4", "7"})
}
