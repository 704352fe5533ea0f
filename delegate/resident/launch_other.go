//go:build !linux

package resident

import (
	"context"
	"errors"
	"fmt"

	"github.com/metacni/metacni/internal/fault"
)

// scan fails if there is a directory of residents to launch.
func (h *Host) scan() ([]string, error) {
	if h.Dir == "" {
		return nil, nil
	}
	return nil, fault.Of("launch", h.Dir, fmt.Errorf("launching residents needs Linux: %w", errors.ErrUnsupported))
}

func (*Host) supervise(context.Context, string, func()) {} // scan returns nothing to launch
