package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Reach waits until a host answers at an address, which it asks from the namespace at path,
// and returns how long that took. It opens a TCP connection to a port without a server: the
// refusal of the other end is an answer.
func Reach(ctx context.Context, path string, to netip.Addr) (took time.Duration, err error) {
	start := time.Now()
	// A socket belongs to the namespace of the thread that makes it.
	err = Do(path, func() error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", netip.AddrPortFrom(to, 9).String())
		if err == nil {
			return conn.Close()
		}
		return err
	})
	if err != nil && !errors.Is(err, unix.ECONNREFUSED) {
		return 0, fmt.Errorf("host: reach %s: %w", to, err)
	}
	return time.Since(start), nil
}
