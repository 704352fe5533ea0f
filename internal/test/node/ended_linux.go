package nodetest

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Stat returns the fields of /proc/PID/stat from the third on, the state; see proc(5). Without such
// a process there are none.
func Stat(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
}

// Status returns a number from /proc/TID/status, or 0.
func Status(tid int, name string) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == name+":" {
			n, _ := strconv.Atoi(words[1])
			return n
		}
	}
	return 0
}

// Ended reports whether a process has ended: the one with this PID that started at a time, in the
// kernel's words, or the one that has the PID now if started is empty. While one of its threads
// lives, a zombie has not ended: its files are still open.
func Ended(pid int, started string) bool {
	f := Stat(pid)
	if len(f) < 20 || started != "" && f[19] != started {
		return true
	}
	const threads = 17
	return f[0] == "X" || f[0] == "Z" && (f[threads] == "0" || f[threads] == "1")
}
