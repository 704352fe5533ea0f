package flock

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

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

// Claim makes a lock on fd that [Try] has taken a valid one: until [Settle], nobody else removes
// the file in [End], and a caller that finds fd's file at its path by then has the lock. Claim
// empties the file, because a note in it is of an earlier holder: that one was interrupted if it has
// died while a program ran. claimed is false, and the lock is released, while another process is in
// Claim or End.
func Claim(fd int) (claimed, interrupted bool, err error) {
	if busy(guard(fd, unix.F_WRLCK)) {
		return false, false, Unlock(fd)
	}
	// Without a guard, fd is not open for writing or the file system has none. There End does
	// nothing either.
	if n, err := unix.Pread(fd, make([]byte, 1), 0); n == 0 && err == nil {
		return true, false, nil
	}
	last, ok := readNote(reader(fd))
	interrupted = ok && len(last.Programs) > 0
	err = unix.Ftruncate(fd, 0)
	if err == unix.EINVAL || err == unix.EBADF { // not open for writing: it is not ours to empty
		return true, interrupted, nil
	}
	return err == nil, interrupted, err
}

// A reader reads the file of a descriptor.
type reader int

func (r reader) ReadAt(p []byte, off int64) (int, error) {
	n, err := unix.Pread(int(r), p, off)
	if n == 0 && err == nil {
		err = io.EOF
	}
	return max(n, 0), err
}

// Settle ends what [Claim] began.
func Settle(fd int) { _ = guard(fd, unix.F_UNLCK) }

// guard locks the first byte of fd's file for a moment, beside flock(2), or unlocks it.
func guard(fd int, how int16) error {
	return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: how, Whence: unix.SEEK_SET, Len: 1})
}

// Await lets [Awaited] see that somebody waits for the lock on f, until f is closed.
func Await(f *os.File) error {
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Whence: unix.SEEK_SET, Start: 1, Len: 1})
}

// Awaited reports whether somebody waits for the lock on f, see [Await].
func Awaited(f *os.File) bool {
	by := unix.Flock_t{Type: unix.F_WRLCK, Whence: unix.SEEK_SET, Start: 1, Len: 1}
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &by) == nil && by.Type != unix.F_UNLCK
}

func busy(err error) bool { return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) }
