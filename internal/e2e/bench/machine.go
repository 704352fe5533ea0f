//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// machine describes the machine in one line.
func (r *rig) machine() (string, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return "", err
	}
	sync, err := r.fsync()
	if err != nil {
		return "", err
	}
	who := "a private host"
	switch {
	case !r.hosted:
		who = "no namespaces"
	case !initial():
		who = "a private host in a user namespace"
	}
	return fmt.Sprintf("%s, %d CPUs, Linux %s, %s; %s; records and leases on %s, where an fsync takes %s ms; medians of %d rounds.",
		model(), runtime.NumCPU(), unix.ByteSliceToString(uts.Release[:]), runtime.Version(), who,
		fileSystem(r.work), figure(sync), r.rounds), nil
}

// model returns the kernel's name of the processor.
func model() string {
	text, _ := os.ReadFile("/proc/cpuinfo") // the architecture is good enough without it
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// initial reports whether this is the machine's own user namespace.
func initial() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(text)), " ") == "0 0 4294967295"
}

// fileSystem returns the type of the file system of path.
func fileSystem(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	text, _ := os.ReadFile("/proc/self/mountinfo")
	longest, kind := 0, "an unknown file system"
	for line := range strings.Lines(string(text)) {
		mount, after, ok := strings.Cut(line, " - ")
		fields := strings.Fields(mount)
		if !ok || len(fields) < 5 {
			continue
		}
		at := strings.TrimSuffix(fields[4], "/")
		if (path == at || strings.HasPrefix(path, at+"/")) && len(at)+1 >= longest {
			longest, kind = len(at)+1, strings.Fields(after)[0]
		}
	}
	return kind
}

// fsync measures how long syncing a file of 4 KB takes, in milliseconds.
func (r *rig) fsync() (float64, error) {
	var took []float64
	for range 11 {
		f, err := os.CreateTemp(r.work, "fsync-")
		if err != nil {
			return 0, err
		}
		_, err = f.Write(make([]byte, 4096))
		start := time.Now()
		if err == nil {
			err = f.Sync()
		}
		took = append(took, ms(time.Since(start)))
		_, _ = f.Close(), os.Remove(f.Name())
		if err != nil {
			return 0, err
		}
	}
	return median(took), nil
}
