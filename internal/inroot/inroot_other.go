//go:build !linux

package inroot

import "errors"

const nonblock = 0

func with(string, string, func(string) error) error { return errors.ErrUnsupported }
