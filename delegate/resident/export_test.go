package resident

import (
	"context"
	"net"
	"time"
)

// Attend registers a process of a user over conn, as if it had connected to the listener:
// in a bubble of synctest there are pipes and no sockets.
func (h *Host) Attend(ctx context.Context, conn net.Conn, uid int) {
	h.tasks.Go(func() {
		_ = h.attend(ctx, &entry{Status: Status{UID: uid}}, conn, func() {})
	})
}

// Causes of errors that only the tests tell apart.
var (
	ErrLost    = errLost
	ErrStopped = errStopped
)

// SetGrace sets the time between SIGTERM and SIGKILL.
func (h *Host) SetGrace(d time.Duration) { h.grace = d }

// SetRelaunch sets the first pause before a relaunch; below zero, residents are
// launched once.
func (h *Host) SetRelaunch(d time.Duration) { h.relaunch = d }
