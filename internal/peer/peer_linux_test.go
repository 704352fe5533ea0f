package peer

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// connected returns the accepted end of a connection.
func connected(t *testing.T, network, address string) net.Conn {
	t.Helper()
	l, err := net.Listen(network, address)
	ok(t, err)
	defer l.Close()
	dialed, err := net.Dial(network, l.Addr().String())
	ok(t, err)
	t.Cleanup(func() { _ = dialed.Close() })
	c, err := l.Accept()
	ok(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// socket returns a path that is short enough for a socket.
func socket(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "p") //nolint:usetesting // t.TempDir may be too long
	ok(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

func TestUID(t *testing.T) {
	t.Parallel()
	c := connected(t, "unix", socket(t))
	if uid, known := UID(c); uid != os.Geteuid() || !known {
		t.Errorf("this process: %d, %v", uid, known)
	}
	ok(t, c.Close())
	if uid, known := UID(c); uid != -1 || known {
		t.Errorf("closed: %d, %v", uid, known)
	}
}

// The peer of a socket pair is the user who created it.
func TestUIDOfAPair(t *testing.T) {
	t.Parallel()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	ok(t, err)
	for _, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		ok(t, err)
		ok(t, f.Close())
		if uid, known := UID(c); uid != os.Geteuid() || !known {
			t.Errorf("%d, %v", uid, known)
		}
		ok(t, c.Close())
	}
}

// Only unix connections have a peer.
func TestUIDOfOthers(t *testing.T) {
	t.Parallel()
	pipe, _ := net.Pipe()
	unconnected, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket(t), Net: "unixgram"})
	ok(t, err)
	defer unconnected.Close()
	for name, c := range map[string]net.Conn{
		"tcp": connected(t, "tcp", "127.0.0.1:0"), "pipe": pipe, "nil": nil, "nothing open": &net.UnixConn{}, "no peer": unconnected,
	} {
		if uid, known := UID(c); uid != -1 || known {
			t.Errorf("%s: %d, %v", name, uid, known)
		}
	}
}
