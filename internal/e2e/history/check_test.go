package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// A part is the operations of a history that one attachment sees.
type part struct {
	key   string
	ops   []op
	first []state // it may be in when the first operation begins
}

// partsOf splits a history by the attachments.
func partsOf(keys []string, ops []op) (all []part) {
	for _, k := range keys {
		p := part{key: k, first: []state{{}}}
		for _, o := range ops {
			if o.key == k || o.key == "-" {
				p.ops = append(p.ops, o)
			}
		}
		all = append(all, p)
	}
	return all
}

// overlaps reports whether o and other may run at the same time.
func (o op) overlaps(other op) bool { return o.call <= other.ret && other.call <= o.ret }

// changes reports whether an operation like o changes anything.
func (o op) changes() bool { return o.verb != "CHECK" && o.verb != "LOOK" }

// operations returns the operations of p in the checker's form.
func (p part) operations() (all []porcupine.Operation) {
	for _, o := range p.ops {
		in := input{verb: o.verb, call: o.call, begun: o.begun}
		switch o.verb {
		case "GC":
			in.valid = slices.Contains(strings.Split(o.arg, ","), p.key)
			in.alone = !slices.ContainsFunc(p.ops, func(other op) bool { return other.id != o.id && other.changes() && o.overlaps(other) })
		case "ATTACH", "DETACH":
			in.hot = int(o.arg[len(o.arg)-1] - '0')
		case "LOOK":
			in.look = o.arg
		}
		all = append(all, porcupine.Operation{Input: in, Call: o.call, Output: o.answer, Return: o.ret})
	}
	return all
}

// illegal reports whether no order of the operations explains their answers. If limit is not
// 0 and that takes longer to find out, it returns false.
func (p part) illegal(limit time.Duration) bool {
	return porcupine.CheckOperationsTimeout(startingIn(p.first...), p.operations(), limit) == porcupine.Illegal
}

// shrinkStep limits each attempt to make a violation shorter.
const shrinkStep = 2 * time.Second

// shrink returns the shortest part of p that it can find and that no order explains: it cuts
// off the end and the beginning, and then leaves out each operation that does not matter, even
// if it had any effect at any time.
func (p part) shrink() part {
	p.ops = slices.SortedFunc(slices.Values(p.ops), func(a, b op) int { return cmp.Compare(a.call, b.call) })
	try := func(shorter part) {
		if shorter.illegal(shrinkStep) {
			p = shorter
		}
	}
	for _, end := range ends(p.ops) {
		if q := p.until(end); q.illegal(shrinkStep) {
			p = q
			break
		}
	}
	for _, begin := range slices.Backward(ends(p.ops)) {
		if q := p.from(begin); q.illegal(shrinkStep) {
			p = q
			break
		}
	}
	for _, o := range slices.Backward(p.ops) {
		try(p.without(o.id))
	}
	p.ops = slices.DeleteFunc(slices.Clone(p.ops), op.unknown)
	return p
}

// ends are the times at which operations have ended.
func ends(ops []op) (all []int64) {
	for _, o := range ops {
		if o.ret != forever {
			all = append(all, o.ret)
		}
	}
	slices.Sort(all)
	return all
}

// until is p as it was known at a time.
func (p part) until(end int64) part {
	known := slices.DeleteFunc(slices.Clone(p.ops), func(o op) bool { return o.call > end })
	for i, o := range known {
		if o.ret > end {
			known[i].answer, known[i].ret = "", forever
		}
	}
	return part{p.key, known, p.first}
}

// from is p without the operations that had ended by a time. The attachment may be in any
// state then.
func (p part) from(begin int64) part {
	return part{p.key, slices.DeleteFunc(slices.Clone(p.ops), func(o op) bool { return o.ret <= begin }), everyState()}
}

// without is p without the answer of an operation, which may have any effect at any time.
func (p part) without(id string) part {
	q := part{p.key, slices.Clone(p.ops), p.first}
	i := slices.IndexFunc(q.ops, func(o op) bool { return o.id == id })
	if q.ops[i].answer, q.ops[i].ret = "", forever; !q.ops[i].changes() {
		q.ops = slices.Delete(q.ops, i, i+1)
	}
	return q
}

// unknown reports whether o is one that [part.without] has left.
func (o op) unknown() bool { return o.answer == "" && o.ret == forever }

// String is p for people, a line for each operation, with times in milliseconds.
func (p part) String() string {
	var b strings.Builder
	begin := int64(math.MaxInt64)
	for _, o := range p.ops {
		begin = min(begin, o.call)
	}
	ms := func(t int64) string {
		if t == forever {
			return "never"
		}
		return fmt.Sprintf("%.3f", float64(t-begin)/1e6)
	}
	for _, o := range p.ops {
		fmt.Fprintf(&b, "%9s - %9s  %-12s %-6s %s %s: %s\n", ms(o.call), ms(o.ret), o.id, o.verb, p.key, o.arg, cmp.Or(o.answer, "no answer"))
	}
	return b.String()
}
