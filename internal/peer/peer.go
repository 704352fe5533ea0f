// Package peer says whose process is at the other end of a connection. It asks
// the system and not the process, so nobody can say that they are another.
package peer

import "net"

// UID returns the user of the process that made the connection c, as it was
// when it connected. It is not ok for anything but an open connection of a unix
// socket, when the system does not say, and on systems other than Linux. It may
// be called by any number of goroutines.
func UID(c net.Conn) (uid int, ok bool) { return uidOf(c) }
