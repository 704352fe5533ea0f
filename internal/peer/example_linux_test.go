package peer_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/metacni/metacni/internal/peer"
)

func Example() {
	dir, err := os.MkdirTemp("", "peer")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = l.Close() }()
	client, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = client.Close() }()
	c, err := l.Accept()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = c.Close() }()
	uid, ok := peer.UID(c)
	fmt.Println(uid == os.Getuid(), ok)
	// Output: true true
}
