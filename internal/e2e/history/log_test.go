package history

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

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
