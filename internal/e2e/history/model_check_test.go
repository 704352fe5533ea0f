package history

import (
	"strconv"
	"strings"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

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
