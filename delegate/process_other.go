//go:build !linux

package delegate

import (
	"context"
	"errors"
	"fmt"
)

// FindInPath fails with [errors.ErrUnsupported] and [ErrPluginNotFound].
func (*Process) FindInPath(string, []string) (string, error) {
	return "", &markedError{fmt.Errorf("plugins are run on Linux only: %w", errors.ErrUnsupported), ErrPluginNotFound}
}

// ExecPlugin returns [errors.ErrUnsupported].
func (*Process) ExecPlugin(context.Context, string, []byte, []string) ([]byte, error) {
	return nil, fmt.Errorf("plugins are run on Linux only: %w", errors.ErrUnsupported)
}
