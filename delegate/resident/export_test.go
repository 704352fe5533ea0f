package resident

import (
	"context"
	"net"
	"os"
)

// Attend registers whoever is at the other end of conn as if it had connected:
// in a bubble of synctest there are pipes, and no sockets.
func (r *Host) Attend(ctx context.Context, conn net.Conn) {
	r.tasks.Go(func() {
		_ = r.expect(conn, 0)
		_ = r.attend(ctx, candidate{conn: conn, source: External, uid: os.Geteuid(), settled: func(error) {}})
	})
}
