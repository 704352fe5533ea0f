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

// A procStat is what we need of /proc/PID/stat.
type procStat struct {
	state   byte
	threads int
}

// parseStat reads the content of /proc/PID/stat, proc(5). The command, which
// may hold anything, is between the first "(" and the last ")".
func parseStat(data []byte) (procStat, bool) {
	text := string(data)
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return procStat{}, false
	}
	f := strings.Fields(text[end+1:]) // from field 3 on
	if len(f) < 20 || len(f[0]) != 1 {
		return procStat{}, false
	}
	threads, err := strconv.Atoi(f[20-3])
	return procStat{state: f[0][0], threads: threads}, err == nil
}

// dead reports whether the process has ended and only its parent has not asked
// yet. While one of its threads lives it has not.
func (s procStat) dead() bool {
	return s.state == 'X' || s.state == 'x' || s.state == 'Z' && s.threads <= 1
}
