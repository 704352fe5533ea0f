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

// ended reports whether the process of status, the content of /proc/PID/status, has ended and
// only its parent has not asked yet. While one of its threads lives it has not.
func ended(status []byte) bool {
	fields := make(map[string]string)
	for line := range bytes.Lines(status) {
		key, value, _ := strings.Cut(string(line), ":")
		fields[key] = strings.TrimSpace(value)
	}
	state, threads := fields["State"], fields["Threads"]
	return strings.HasPrefix(state, "X") || strings.HasPrefix(state, "Z") && threads == "1"
}
