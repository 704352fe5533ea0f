//go:build !linux

package peer

import "net"

// UID knows nothing of any connection on this system.
func UID(net.Conn) (uid int, ok bool) { return -1, false }
