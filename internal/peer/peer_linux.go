package peer

import (
	"net"
	"syscall"
)

// UID returns the user of the process that made the connection c, as it was
// when it connected. A connection with a method NetConn, such as a [crypto/tls.Conn], is
// the one that NetConn returns. It is not ok for anything but an open connection of a unix
// socket, when the system does not say, and on systems other than Linux. It may
// be called by any number of goroutines.
func UID(c net.Conn) (uid int, ok bool) {
	if outer, wraps := c.(interface{ NetConn() net.Conn }); wraps {
		return UID(outer.NetConn())
	}
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
