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

func (f files) killOrphans(func() (string, durable.ID, error)) (int, error) {
	return 0, errors.ErrUnsupported
}

func (f files) findLock(string) (string, durable.ID, error) { return "", durable.ID{}, nil }

func (f files) findDir() (string, durable.ID, error) { return "", durable.ID{}, nil }
