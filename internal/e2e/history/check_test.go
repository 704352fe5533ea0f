package history

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"
	"golang.org/x/sys/unix"
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

// A logbook is the log of a node, to which all of its processes append. Each line is one
// write, so that a process that is killed loses nothing that it has said. A line has a time
// and one of these events:
//
//	call ID VERB KEY ARG   an operation begins; KEY is "-" for one on all attachments
//	begun ID               a GC has read the records, see [watched]
//	ret ID ANSWER          it has ended
//	dead PROCESS           what it had begun has no answer
//	left PROCESS PID       its plugin has left this process behind
//	plugin ...             a plugin runs, for people
//	wrong ...              a plugin saw what must not be
//
// The ID of an operation is PROCESS.NUMBER.
type logbook struct {
	file    *os.File
	process string
	last    atomic.Int64 // number of an operation
}

func openLog(dir, process string) (*logbook, error) {
	f, err := os.OpenFile(dir+"/log", os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	return &logbook{file: f, process: process}, err
}

// now is the time on the clock that all processes of the machine share.
func now() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // cannot fail with this clock
	return t.Nano()
}

// say writes a line, and panics if it cannot: a log with gaps shows nothing.
func (l *logbook) say(at int64, words ...string) {
	if _, err := l.file.WriteString(strconv.FormatInt(at, 10) + " " + strings.Join(words, " ") + "\n"); err != nil {
		panic(err)
	}
}

// wrong says what must not be.
func (l *logbook) wrong(format string, args ...any) {
	l.say(now(), "wrong", strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "))
}

// do logs an operation with its answer.
func (l *logbook) do(verb, key, arg string, operate func(id string) (answer string)) {
	id := l.process + "." + strconv.FormatInt(l.last.Add(1), 10)
	l.say(now(), "call", id, verb, key, arg)
	answer := operate(id)
	l.say(now(), "ret", id, answer)
}

// An op is an operation as the log has it.
type op struct {
	id, verb, key, arg string
	answer             string // "" if it is not known
	call, begun, ret   int64
}

// forever is the time of an answer that never comes.
const forever = 1<<63 - 1

// An account is the content of a part of a log.
type account struct {
	ops   []op
	calls int // without those that a shim repeats
	wrong []string
	dead  []string // processes
	left  []leftProcess
	size  int // of its text
}

// A leftProcess is one that a plugin of an operation has left behind.
type leftProcess struct {
	process string
	pid     int
}

// read returns what text, whole lines of a log, tells. An operation of a process that has died
// ended then at the latest.
func read(text []byte) (account, error) {
	a := account{size: len(text)}
	at := make(map[string]int) // the place of an operation without an answer, by its ID
	for line := range bytes.Lines(text) {
		f := strings.Fields(string(line))
		if len(f) < 3 {
			return a, fmt.Errorf("bad line in the log: %q", line)
		}
		t, err := strconv.ParseInt(f[0], 10, 64)
		if err != nil {
			return a, fmt.Errorf("bad line in the log: %w", err)
		}
		switch f[1] {
		case "call":
			at[f[2]] = len(a.ops)
			a.calls++
			a.ops = append(a.ops, op{id: f[2], verb: f[3], key: f[4], arg: strings.Join(f[5:], " "), call: t, begun: forever, ret: forever})
		case "begun":
			if i, known := at[f[2]]; known {
				a.ops[i].begun = t
			}
		case "ret":
			i, known := at[f[2]]
			if !known {
				return a, fmt.Errorf("an answer to nothing: %q", line)
			}
			delete(at, f[2])
			if a.ops[i].ret = t; f[3] != lost {
				a.ops[i].answer = f[3]
			}
		case "dead":
			a.dead = append(a.dead, f[2])
			for id, i := range at {
				again := a.ops[i]
				if strings.HasPrefix(f[2], "daemon") && (again.verb == "DEL" || again.verb == "GC") && again.call < t {
					// The shim sends it to the next daemon too.
					again.id, again.ret = id+" to "+f[2], t
					a.ops = append(a.ops, again)
				}
				if strings.HasPrefix(id, f[2]+".") {
					delete(at, id)
					a.ops[i].ret = t
				}
			}
		case "left":
			pid, _ := strconv.Atoi(f[3])
			a.left = append(a.left, leftProcess{f[2], pid})
		case "wrong":
			a.wrong = append(a.wrong, strings.Join(f[2:], " "))
		}
	}
	return a, nil
}
