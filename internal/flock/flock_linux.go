package flock

import "golang.org/x/sys/unix"

// Try locks the open file fd without waiting. It reports false when another
// descriptor of the file, one that is not a copy of fd, has a lock in the way.
//
// The lock ends when the last copy of fd is closed, in children too, or with
// [Unlock].
func Try(fd int, exclusive bool) (bool, error) {
	how := unix.LOCK_SH
	if exclusive {
		how = unix.LOCK_EX
	}
	for {
		switch err := unix.Flock(fd, how|unix.LOCK_NB); err {
		case nil:
			return true, nil
		case unix.EINTR:
		case unix.EWOULDBLOCK:
			return false, nil
		default:
			return false, err
		}
	}
}

// Unlock releases the lock on fd, and with it the lock of every copy of fd.
// Closing fd alone leaves the lock to a child that has a copy.
func Unlock(fd int) error { return unix.Flock(fd, unix.LOCK_UN) }
