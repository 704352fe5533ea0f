//go:build !linux

package main

import (
	"errors"

	"github.com/metacni/metacni/delegate"
)

func moveDefaultRoute([]wanted, []delegate.Attached) error { return errors.ErrUnsupported }
