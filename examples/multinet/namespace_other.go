//go:build !linux

package main

import (
	"errors"

	"github.com/metacni/metacni/delegate"
)

func interfaceNames(string) ([]string, error) { return nil, errors.ErrUnsupported }

func moveDefaultRoute([]wanted, []delegate.Attached) error { return errors.ErrUnsupported }
