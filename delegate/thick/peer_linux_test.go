package thick

import (
	"net"
	"testing"

	"github.com/metacni/metacni/internal/peer"
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
	if uid, ok := peer.UID(c); uid != 65534 || !ok {
		t.Errorf("%d, %v", uid, ok)
	}
	// It stays who it was when the process has gone.
	ok(t, a.in.Close())
	_ = a.Wait()
	if uid, ok := peer.UID(c); uid != 65534 || !ok {
		t.Errorf("after its end: %d, %v", uid, ok)
	}
}
