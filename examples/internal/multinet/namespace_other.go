//go:build !linux

package multinet

import (
	"errors"

	"github.com/metacni/metacni/delegate"
)

func moveDefaultRoute(string, []wanted, []delegate.Attached) error { return errors.ErrUnsupported }
