package flock

import (
	"bytes"
	"strconv"
	"strings"
)

// A descriptor is what /proc/PID/fdinfo/N says of one.
type descriptor struct {
	locked    bool // it shares a lock of flock(2)
	taker     int  // the process that took the lock; 0 is one we cannot see
	inherited bool // a program that takes a lock itself closes the file on exec
}

const oCloexec = 0o2000000

// parseFdinfo reads /proc/PID/fdinfo/N, proc(5).
func parseFdinfo(data []byte) descriptor {
	var d descriptor
	for line := range bytes.Lines(data) {
		f := strings.Fields(string(line))
		switch {
		case len(f) >= 2 && f[0] == "flags:":
			flags, err := strconv.ParseUint(f[1], 8, 32)
			d.inherited = err == nil && flags&oCloexec == 0
		case len(f) >= 6 && f[0] == "lock:" && f[2] == "FLOCK":
			d.locked = true
			d.taker, _ = strconv.Atoi(f[5])
		}
	}
	return d
}

// A process is what /proc/PID/stat says of one.
type process struct {
	pid, group int
	start      int64 // in nanoseconds since boot, rounded down to a tick
	ended      bool  // its parent has not reaped it yet
}

// tick is the unit of start times in proc(5): USER_HZ is 100.
const tick = int64(1e7)

// parseStat reads /proc/PID/stat, proc(5).
func parseStat(data []byte) (p process, ok bool) {
	before, _, _ := bytes.Cut(data, []byte(" "))
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return p, false
	}
	pid, err1 := strconv.Atoi(string(before))
	group, err2 := strconv.Atoi(fields[2])
	ticks, err3 := strconv.ParseInt(fields[19], 10, 64)
	// While one of its threads lives a zombie has not ended.
	ended := fields[0] == "X" || fields[0] == "Z" && (fields[17] == "1" || fields[17] == "0")
	if err1 != nil || err2 != nil || err3 != nil {
		return p, false
	}
	return process{pid, group, ticks * tick, ended}, true
}

// since reports whether p may have started at the time or later.
func (p process) since(at int64) bool { return p.start >= at/tick*tick }

// at reports whether p had its PID at the time already, so that it is the process that had it then.
// One that got the PID within the same tick counts too.
func (p process) at(at int64) bool { return !p.ended && p.start <= at }
