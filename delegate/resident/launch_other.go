//go:build !linux

package resident

import (
	"context"
	"errors"
	"fmt"
	"net"
)

func (r *Host) scan(context.Context) ([]file, error) {
	if r.Dir == "" {
		return nil, nil
	}
	return nil, &Error{Op: "launch", Which: r.Dir, Err: fmt.Errorf("residents are launched on Linux only: %w", errors.ErrUnsupported)}
}

type process struct {
	uid, pid int
	exited   chan struct{}
	end      func()
}

func (r *Host) start(file) (*process, net.Conn, error) { return nil, nil, errors.ErrUnsupported }
