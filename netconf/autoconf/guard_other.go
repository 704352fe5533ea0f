//go:build !unix

package autoconf

// nonblock has no use where there are no FIFOs.
const nonblock = 0
