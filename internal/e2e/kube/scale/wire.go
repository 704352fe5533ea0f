//go:build linux

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A traffic is the bytes that connections have received and sent, TLS included.
type traffic struct{ in, out uint64 }

func (t traffic) minus(u traffic) traffic { return traffic{t.in - u.in, t.out - u.out} }

// A wire counts the traffic of the nodes with the API server, as the kernel counts it for
// each connection. A connection between two looks is missed; those of the administrator
// do not count.
type wire struct {
	port uint16 // of the API server

	mu   sync.Mutex
	skip map[uint16]bool // local ports of the administrator
	seen map[[2]uint32]traffic
}

// newWire returns a wire for the connections that are opened later.
func newWire(port uint16) (*wire, error) {
	w := &wire{port: port, skip: map[uint16]bool{}, seen: map[[2]uint32]traffic{}}
	all, err := netlink.SocketDiagTCPInfo(unix.AF_INET)
	for _, s := range all {
		if id := s.InetDiagMsg.ID; id.DestinationPort == port {
			w.skip[id.SourcePort] = true
		}
	}
	return w, err
}

// dial connects the administrator.
func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var d net.Dialer
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	local, ok := c.LocalAddr().(*net.TCPAddr)
	if !ok {
		return nil, fmt.Errorf("local address %v", c.LocalAddr())
	}
	w.skip[uint16(local.Port)] = true
	return c, nil
}

// look returns the traffic since the beginning, and the number of connections that are
// open.
func (w *wire) look() (sum traffic, open int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	own, err := ownSockets()
	if err != nil {
		return sum, 0, err
	}
	all, err := netlink.SocketDiagTCPInfo(unix.AF_INET)
	if err != nil {
		return sum, 0, err
	}
	for _, s := range all {
		id := s.InetDiagMsg.ID
		if s.TCPInfo == nil || id.DestinationPort != w.port || w.skip[id.SourcePort] || !own[s.InetDiagMsg.INode] {
			continue
		}
		open++
		w.seen[id.Cookie] = traffic{s.TCPInfo.Bytes_received, s.TCPInfo.Bytes_acked}
	}
	for _, t := range w.seen {
		sum.in += t.in
		sum.out += t.out
	}
	return sum, open, nil
}

// watch looks twice a second until ctx ends, so that little of a connection that
// ends is missed.
func (w *wire) watch(ctx context.Context) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_, _, _ = w.look() // the look at the end reports the error
		}
	}
}

// ownSockets returns the inodes of the sockets of this process.
func ownSockets() (map[uint32]bool, error) {
	const dir = "/proc/self/fd"
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	own := make(map[uint32]bool, len(files))
	for _, f := range files {
		name, err := os.Readlink(dir + "/" + f.Name())
		if err != nil || !strings.HasPrefix(name, "socket:[") {
			continue // closed meanwhile, or another kind of file
		}
		var inode uint32
		if _, err := fmt.Sscanf(name, "socket:[%d]", &inode); err == nil {
			own[inode] = true
		}
	}
	return own, nil
}
