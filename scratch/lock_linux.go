package scratch

import "golang.org/x/sys/unix"

func dup(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3) }

func closeFD(fd int) { _ = unix.Close(fd) }
