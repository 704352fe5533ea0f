package lifecycle

import (
	"os"
	"syscall"
)

// lockIsHeld reports whether somebody holds the lock in a file.
func lockIsHeld(name string) bool {
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == syscall.EWOULDBLOCK
}
