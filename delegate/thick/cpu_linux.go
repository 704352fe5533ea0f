package thick

import (
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime returns the processor time that this process has used, with the plugins that have
// ended.
func cpuTime() (all time.Duration, known bool) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if unix.Getrusage(who, &u) != nil {
			return 0, false
		}
		all += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return all, true
}
