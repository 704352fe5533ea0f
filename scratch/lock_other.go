//go:build !linux

package scratch

import (
	"errors"
	"os"

	"github.com/metacni/metacni/internal/durable"
)

func flock(*os.File) (bool, error) { return false, errors.ErrUnsupported }

func unflock(*os.File) error { return errors.ErrUnsupported }

func inherited(*os.File, durable.ID) bool { return false }

func self() (owner, error) { return owner{}, errors.ErrUnsupported }

func startTime(int) (uint64, error) { return 0, errors.ErrUnsupported }

func (f files) killOrphans(string) (int, error) { return 0, errors.ErrUnsupported }
