//go:build !linux

package resident

import (
	"errors"
	"fmt"
	"net"

	"github.com/metacni/metacni/internal/fault"
)

func (h *Host) scan() ([]file, error) {
	if h.Dir == "" {
		return nil, nil
	}
	return nil, fault.Of("launch", h.Dir, fmt.Errorf("launching residents needs Linux: %w", errors.ErrUnsupported))
}

type process struct {
	pid    int
	exited chan struct{}
	end    func()
}

func (h *Host) start(file) (*process, net.Conn, error) { return nil, nil, errors.ErrUnsupported }
