package scratch

import (
	"bytes"
	"strconv"
	"strings"
)

// parseLock reads a lock's file. It passes over what it does not understand,
// and over a last line without its end: half a number is another number.
func parseLock(data []byte) (o owner, groups []process) {
	for {
		line, rest, ok := bytes.Cut(data, []byte{'\n'})
		if !ok {
			return o, groups
		}
		data = rest
		f := strings.Split(string(line), " ")
		switch {
		case len(f) == 4 && f[0] == "owner":
			p, ok := parseProcess(f[1], f[2])
			ns, err := strconv.ParseUint(f[3], 10, 64)
			if ok && err == nil {
				o = owner{process: p, pidns: ns}
			}
		case len(f) == 3 && f[0] == "group":
			if p, ok := parseProcess(f[1], f[2]); ok {
				groups = append(groups, p)
			}
		}
	}
}

// parseProcess refuses the numbers that mean more than one process to kill(2),
// and process 1.
func parseProcess(pid, start string) (process, bool) {
	n, err := strconv.ParseInt(pid, 10, 32)
	if err != nil || n <= 1 {
		return process{}, false
	}
	t, err := strconv.ParseUint(start, 10, 64)
	return process{pid: int(n), start: t}, err == nil
}

// A procStat is what we need of /proc/PID/stat.
type procStat struct {
	process
	state   byte
	pgrp    int
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
	pid, err1 := strconv.Atoi(strings.TrimSpace(text[:open]))
	pgrp, err2 := strconv.Atoi(f[5-3])
	threads, err3 := strconv.Atoi(f[20-3])
	start, err4 := strconv.ParseUint(f[22-3], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil {
		return procStat{}, false
	}
	return procStat{
		process: process{pid: pid, start: start},
		state:   f[0][0], pgrp: pgrp, threads: threads,
	}, true
}
