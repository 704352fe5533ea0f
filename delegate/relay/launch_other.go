//go:build !linux

package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
)

func (r *Relay) scan(context.Context) ([]file, error) {
	if r.Dir == "" {
		return nil, nil
	}
	return nil, &Error{Op: "launch", Which: r.Dir, Err: fmt.Errorf("delegates are launched on Linux only: %w", errors.ErrUnsupported)}
}

type process struct {
	uid, pid int
	exited   chan struct{}
	end      func()
}

func (r *Relay) start(file) (*process, net.Conn, error) { return nil, nil, errors.ErrUnsupported }
