//go:build !linux

package queue

import (
	"errors"
	"os"
)

func flock(*os.File, mode) (bool, error) { return false, errors.ErrUnsupported }

func unflock(*os.File) error { return errors.ErrUnsupported }

func private(string) error { return errors.ErrUnsupported }
