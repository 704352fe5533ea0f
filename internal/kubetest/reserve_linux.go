package kubetest

import (
	"net"
	"sync"
	"syscall"
)

// reserve keeps others from taking the port: it binds a socket and does not listen.
// Connections are refused. A listener with SO_REUSEADDR, such as Go's, can still bind the
// port by its number. It does nothing if it fails. release may be called again.
func reserve(addr net.TCPAddr) (release func()) {
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return func() {}
	}
	err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	if err == nil {
		err = syscall.Bind(fd, &syscall.SockaddrInet4{Port: addr.Port, Addr: [4]byte(addr.IP.To4())})
	}
	if err != nil {
		_ = syscall.Close(fd)
		return func() {}
	}
	return sync.OnceFunc(func() { _ = syscall.Close(fd) })
}
