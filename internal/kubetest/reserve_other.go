//go:build !linux

package kubetest

import "net"

// reserve does nothing: others may take the port.
func reserve(net.TCPAddr) (release func()) { return func() {} }
