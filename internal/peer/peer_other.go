//go:build !linux

package peer

import "net"

// uidOf knows nothing of any connection on this system.
func uidOf(net.Conn) (uid int, ok bool) { return -1, false }
