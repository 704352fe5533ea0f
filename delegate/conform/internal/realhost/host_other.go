//go:build !linux

// Package realhost makes private hosts with real containers, on Linux.
package realhost

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// A Host exists only on Linux.
type Host struct{}

// New returns an [errors.ErrUnsupported].
func New(_, _ []string) (*Host, error) {
	return nil, fmt.Errorf("%w: make a host: needs Linux, not %s", errors.ErrUnsupported, runtime.GOOS)
}

// Here returns an [errors.ErrUnsupported].
func Here() (*Host, error) { return New(nil, nil) }

// Start is only for Linux.
func (*Host) Start(*exec.Cmd) error { return errors.ErrUnsupported }

// Container is only for Linux.
func (*Host) Container() (*Container, error) { return nil, errors.ErrUnsupported }

// State is only for Linux.
func (*Host) State(context.Context) (State, error) { return State{}, errors.ErrUnsupported }

// Close does nothing.
func (*Host) Close() error { return nil }

// A Container exists only on Linux.
type Container struct{ Path string }

// Attach is only for Linux.
func (*Container) Attach(string) (*types100.Result, error) { return nil, errors.ErrUnsupported }

// Interface is only for Linux.
func (*Container) Interface(string) ([]netip.Prefix, bool, error) {
	return nil, false, errors.ErrUnsupported
}

// HasRoute reports false.
func (c *Container) HasRoute(net.IPNet) (bool, error) { return false, errors.ErrUnsupported }

// Remove is only for Linux.
func (*Container) Remove(string) error { return errors.ErrUnsupported }

// State is only for Linux.
func (*Container) State() (State, error) { return State{}, errors.ErrUnsupported }

// Restore is only for Linux.
func (*Container) Restore(string, State) error { return errors.ErrUnsupported }

// Gone is only for Linux.
func (*Container) Gone() error { return errors.ErrUnsupported }
