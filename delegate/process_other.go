//go:build !linux

package delegate

import (
	"context"
	"errors"
	"fmt"
)

func (p *Process) find(plugin string, _ []string) (string, error) {
	return "", fmt.Errorf("%w: %q: processes are run on Linux only: %w", ErrPluginNotFound, plugin, errors.ErrUnsupported)
}

func (p *Process) execPlugin(context.Context, string, []byte, []string) ([]byte, error) {
	return nil, fmt.Errorf("processes are run on Linux only: %w", errors.ErrUnsupported)
}
