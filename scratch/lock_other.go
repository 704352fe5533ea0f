//go:build !linux

package scratch

import (
	"errors"

	"github.com/metacni/metacni/internal/durable"
)

func dup(int) (int, error) { return -1, errors.ErrUnsupported }

func closeFD(int) {}

type lockFile struct {
	name string
	id   durable.ID
}

func (lockFile) inherited() bool { return false }

func (f files) killOrphans(string) (int, error) { return 0, errors.ErrUnsupported }
