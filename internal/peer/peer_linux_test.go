package peer

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// connected returns the accepted end of a connection.
func connected(t *testing.T, network, address string) net.Conn {
	t.Helper()
	l, err := net.Listen(network, address)
	nodetest.OK(t, err)
	defer l.Close()
	dialed, err := net.Dial(network, l.Addr().String())
	nodetest.OK(t, err)
	t.Cleanup(func() { _ = dialed.Close() })
	c, err := l.Accept()
	nodetest.OK(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestUID(t *testing.T) {
	t.Parallel()
	c := connected(t, "unix", filepath.Join(nodetest.ShortDir(t), "s"))
	if uid, known := UID(c); uid != os.Geteuid() || !known {
		t.Errorf("this process: %d, %v", uid, known)
	}
	if uid, known := UID(tls.Server(c, nil)); uid != os.Geteuid() || !known {
		t.Errorf("this process, with TLS: %d, %v", uid, known)
	}
	nodetest.OK(t, c.Close())
	if uid, known := UID(c); uid != -1 || known {
		t.Errorf("closed: %d, %v", uid, known)
	}
}

// The peer of a socket pair is the user who created it.
func TestUIDOfAPair(t *testing.T) {
	t.Parallel()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	nodetest.OK(t, err)
	for _, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		nodetest.OK(t, err)
		nodetest.OK(t, f.Close())
		if uid, known := UID(c); uid != os.Geteuid() || !known {
			t.Errorf("%d, %v", uid, known)
		}
		nodetest.OK(t, c.Close())
	}
}

// Only unix connections have a peer.
func TestUIDOfOthers(t *testing.T) {
	t.Parallel()
	pipe, _ := net.Pipe()
	unconnected, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(nodetest.ShortDir(t), "s"), Net: "unixgram"})
	nodetest.OK(t, err)
	defer unconnected.Close()
	for name, c := range map[string]net.Conn{
		"tcp": connected(t, "tcp", "127.0.0.1:0"), "tcp with TLS": tls.Server(connected(t, "tcp", "127.0.0.1:0"), nil), "pipe": pipe, "nil": nil, "nothing open": &net.UnixConn{}, "no peer": unconnected,
	} {
		if uid, known := UID(c); uid != -1 || known {
			t.Errorf("%s: %d, %v", name, uid, known)
		}
	}
}
