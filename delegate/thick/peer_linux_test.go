package thick

import (
	"net"
	"os"
	"testing"
)

// accepted returns the accepted end of a connection that dial makes.
func accepted(t *testing.T, l net.Listener, dial func()) net.Conn {
	t.Helper()
	dial()
	c, err := l.Accept()
	ok(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestPeer(t *testing.T) {
	t.Parallel()
	path := socketDir(t) + "/s"
	l, err := net.Listen("unix", path)
	ok(t, err)
	defer l.Close()
	dial := func() {
		c, err := net.Dial("unix", path)
		ok(t, err)
		t.Cleanup(func() { _ = c.Close() })
	}
	c := accepted(t, l, dial)
	if uid, ok := peer(c); uid != os.Geteuid() || !ok {
		t.Errorf("this process: %d, %v", uid, ok)
	}
	ok(t, c.Close())
	if uid, ok := peer(c); uid != -1 || ok {
		t.Errorf("closed: %d, %v", uid, ok)
	}
}

// The kernel says who connected, whatever the client says of itself.
func TestPeerOfAnotherUser(t *testing.T) {
	t.Parallel()
	asNobody := asUser(t, 65534)
	path := socketDir(t) + "/s"
	l, err := net.Listen("unix", path)
	ok(t, err)
	defer l.Close()
	openTo(t, path)
	var a *actor
	c := accepted(t, l, func() { a = start(t, "dial", path, asNobody) })
	if said := a.says(t); said != "connected" {
		t.Fatal(said)
	}
	if uid, ok := peer(c); uid != 65534 || !ok {
		t.Errorf("%d, %v", uid, ok)
	}
	// It stays who it was when the process has gone.
	ok(t, a.in.Close())
	_ = a.Wait()
	if uid, ok := peer(c); uid != 65534 || !ok {
		t.Errorf("after its end: %d, %v", uid, ok)
	}
}

// Only unix connections have a user.
func TestPeerOfOthers(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	defer l.Close()
	tcp := accepted(t, l, func() {
		c, err := net.Dial("tcp", l.Addr().String())
		ok(t, err)
		t.Cleanup(func() { _ = c.Close() })
	})
	pipe, _ := net.Pipe()
	for name, c := range map[string]net.Conn{"tcp": tcp, "pipe": pipe, "nil": nil, "nothing open": &net.UnixConn{}} {
		if uid, ok := peer(c); uid != -1 || ok {
			t.Errorf("%s: %d, %v", name, uid, ok)
		}
	}
}
