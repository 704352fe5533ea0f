//go:build !linux

package queue

import "errors"

func private(string) error { return errors.ErrUnsupported }
