package multinet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// ready fails if the readiness indicator file is missing.
func (c *config) ready() error {
	if c.ReadinessIndicator == "" {
		return nil
	}
	if _, err := fs.Stat(c.call.Root.Dir(filepath.Dir(c.ReadinessIndicator)), filepath.Base(c.ReadinessIndicator)); err != nil {
		return types.NewError(types.ErrTryAgainLater, fmt.Sprintf("network %q is not ready: %s", c.call.Name, why(err)), c.ReadinessIndicator)
	}
	return nil
}

func why(err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "readinessindicatorfile is missing"
	}
	return err.Error()
}

// waitReady waits for the readiness indicator file, at most for readinessTimeout.
func (c *config) waitReady(ctx context.Context) error {
	if c.ready() == nil {
		return nil
	}
	timeout := readyTimeout
	if c.ReadinessTimeout != nil {
		timeout = time.Duration(*c.ReadinessTimeout)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		err := c.ready()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-poll.C:
		}
	}
}
