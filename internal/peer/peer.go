// Package peer says whose process is at the other end of a connection. It asks
// the system and not the process, so nobody can say that they are another.
package peer
