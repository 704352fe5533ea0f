package peer

import (
	"net"
	"syscall"
)

func uidOf(c net.Conn) (uid int, ok bool) {
	u, isUnix := c.(*net.UnixConn)
	if !isUnix {
		return -1, false
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return -1, false
	}
	var cred *syscall.Ucred
	cerr := raw.Control(func(fd uintptr) {
		cred, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if cerr != nil || err != nil || cred.Uid == noUID {
		return -1, false
	}
	return int(cred.Uid), true
}

// noUID is what the kernel says of a socket that has no peer: (uid_t)-1.
const noUID = 1<<32 - 1
