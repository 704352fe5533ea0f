//go:build !linux

package thick

import (
	"context"
	"errors"
	"net"
)

func listen(context.Context, string) (net.Listener, error) { return nil, errors.ErrUnsupported }

func activated(context.Context, []string) (net.Listener, error) { return nil, errors.ErrUnsupported }
