//go:build !linux

package autoconf

import (
	"errors"
	"os"
)

func lock(string) (*os.File, error) { return nil, errors.ErrUnsupported }
