package plugin

import (
	"os"

	"golang.org/x/sys/unix"
)

// handDown makes all programs that this process starts from now on inherit files.
func handDown(files []*os.File) {
	for _, f := range files {
		_, _ = unix.FcntlInt(f.Fd(), unix.F_SETFD, 0) // cannot fail: f is open
	}
}
