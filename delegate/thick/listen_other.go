//go:build !linux

package thick

import (
	"context"
	"errors"
	"fmt"
	"net"
)

// Listen returns [errors.ErrUnsupported].
func Listen(_ context.Context, socket string) (*Listener, error) {
	return nil, fmt.Errorf("listen on %s: %w", socket, errors.ErrUnsupported)
}

// Activated returns [errors.ErrUnsupported].
func Activated(context.Context, []string) (net.Listener, error) {
	return nil, fmt.Errorf("socket activation: %w", errors.ErrUnsupported)
}

// A Listener does not exist on this system: all methods return
// [errors.ErrUnsupported].
type Listener struct{}

// Accept returns [errors.ErrUnsupported].
func (l *Listener) Accept() (net.Conn, error) { return nil, errors.ErrUnsupported }

// Addr returns an address without a path.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// HandOver returns [errors.ErrUnsupported].
func (l *Listener) HandOver(context.Context) error { return errors.ErrUnsupported }

// Close returns [errors.ErrUnsupported].
func (l *Listener) Close() error { return errors.ErrUnsupported }
