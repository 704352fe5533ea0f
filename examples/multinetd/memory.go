package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// quiet is how long no command comes before the daemon gives back memory.
	quiet = 2 * time.Second
	// many is after how many commands it does so: the next one takes a millisecond longer.
	many = 64
)

// A workload counts commands.
type workload struct {
	commands atomic.Int64
	more     chan struct{} // receives after a command
}

func (w *workload) done() {
	w.commands.Add(1)
	select {
	case w.more <- struct{}{}:
	default: // it was not seen yet that there are more
	}
}

// rest gives back memory while no command comes: when the daemon is ready, and again after
// many commands. It gives back the free part of the heap, and the pages of the program. The
// start reads half of the program, a command reads little of it, from the page cache.
func (d *daemon) rest(ctx context.Context) {
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	next := int64(0) // at how many commands to give back memory again
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.work.more:
			timer.Reset(quiet)
			continue
		case <-timer.C:
		}
		done := d.work.commands.Load()
		if done < next {
			continue
		}
		if ready, _ := d.cluster.Probe(ctx); !ready {
			timer.Reset(quiet)
			continue
		}
		debug.FreeOSMemory()
		releaseFiles()
		next = done + many
	}
}

// releaseFiles gives back the pages of the program that cannot be written to. A mapping that
// a linker has written to before stays.
func releaseFiles() {
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		return // only Linux has it
	}
	program, ok := self.Sys().(*syscall.Stat_t)
	f, err := os.Open("/proc/self/smaps")
	if err != nil || !ok {
		return
	}
	defer f.Close() //nolint:errcheck // opened to read
	release(f, program.Ino, func(from, to uintptr) {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED) // if it fails they stay
	})
}

// release calls drop with the mappings of the file inode in smaps, proc(5), that have no page
// that was written to: neither in memory nor in swap.
func release(smaps io.Reader, inode uint64, drop func(from, to uintptr)) {
	var from, to uintptr
	clean := 0
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		line := lines.Text()
		var low, high uintptr
		var access, offset, device string
		var of uint64
		if n, _ := fmt.Sscanf(line, "%x-%x %s %s %s %d", &low, &high, &access, &offset, &device, &of); n == 6 {
			from, to, clean = low, high, 0
			if of != inode || access != "r-xp" && access != "r--p" {
				to = from
			}
			continue
		}
		key, value, _ := strings.Cut(line, ":")
		if (key == "Anonymous" || key == "Swap") && strings.TrimSpace(value) == "0 kB" {
			if clean++; clean == 2 && from < to {
				drop(from, to)
			}
		}
	}
}
