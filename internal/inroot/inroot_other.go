//go:build !linux

package inroot

import "errors"

func with(string, string, func(string) error) error { return errors.ErrUnsupported }
