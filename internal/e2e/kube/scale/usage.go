//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// A usage is what a process has used: processor time since its start, and the memory
// that it has now.
type usage struct {
	cpu      time.Duration
	resident uint64 // bytes
}

// children returns the usage of the newest child process of each name.
func children() (map[string]usage, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	all := map[string]usage{}
	newest := map[string]int{}
	for _, file := range stats {
		name, parent, pid, u, err := readStat(file)
		if err != nil || parent != os.Getpid() || pid < newest[name] {
			continue // ended meanwhile, or somebody else's
		}
		newest[name], all[name] = pid, u
	}
	return all, nil
}

// self returns the usage of this process.
func self() (usage, error) {
	_, _, _, u, err := readStat("/proc/self/stat")
	return u, err
}

// readStat reads the file stat of a process, see proc(5).
func readStat(file string) (name string, parent, pid int, u usage, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", 0, 0, u, err
	}
	begin, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if begin < 0 || end < begin {
		return "", 0, 0, u, fmt.Errorf("%s: %q", file, text)
	}
	pid, err = strconv.Atoi(strings.TrimSpace(string(text[:begin])))
	if err != nil {
		return "", 0, 0, u, err
	}
	fields := strings.Fields(string(text[end+1:])) // from state on, the third
	number := func(i int) (n int64) {
		if err == nil {
			n, err = strconv.ParseInt(fields[i-3], 10, 64)
		}
		return n
	}
	const tick = time.Second / 100 // USER_HZ
	parent = int(number(4))
	u.cpu = time.Duration(number(14)+number(15)) * tick
	u.resident = uint64(number(24)) * uint64(os.Getpagesize())
	return string(text[begin+1 : end]), parent, pid, u, err
}

// heap returns the bytes that this process uses: objects that are reachable, and stacks.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // objects with finalizers
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}
