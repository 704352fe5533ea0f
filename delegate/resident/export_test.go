package resident

import (
	"context"
	"net"
	"os"
)

// Attend registers a process over conn, as if it had connected to the listener:
// in a bubble of synctest there are pipes and no sockets.
func (h *Host) Attend(ctx context.Context, conn net.Conn) {
	h.tasks.Go(func() {
		_ = h.expect(conn, 0)
		h.attend(ctx, candidate{conn: conn, source: External, uid: os.Geteuid(), settled: func(error) {}})
	})
}
