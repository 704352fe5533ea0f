//go:build !linux

package delegate

import (
	"context"
	"errors"
	"fmt"
)

func (p *Process) find(string, []string) (string, error) {
	return "", &markedError{fmt.Errorf("plugins are run on Linux only: %w", errors.ErrUnsupported), ErrPluginNotFound}
}

func (p *Process) execPlugin(context.Context, string, []byte, []string) ([]byte, error) {
	return nil, fmt.Errorf("plugins are run on Linux only: %w", errors.ErrUnsupported)
}
