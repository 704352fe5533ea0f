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

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// New returns an [errors.ErrUnsupported].
func New(_, _ []string) (*Host, error) { return Here() }

// Here returns an [errors.ErrUnsupported].
func Here() (*Host, error) {
	return nil, fmt.Errorf("%w: network namespaces need Linux", errors.ErrUnsupported)
}

// A Host exists only on Linux. Nothing calls the methods elsewhere.
type Host struct{ methods }

type methods interface {
	Start(cmd *exec.Cmd) error
	Close() error
	Container() (path string, err error)
	Remove(path string) error
	Attach(path, name string) (*types100.Result, error)
	Detach(path, name string) error
	Addresses(path, name string) ([]netip.Prefix, bool, error)
	HasRoute(path string, dst *net.IPNet) (bool, error)
	State(ctx context.Context) (State, error)
	Inside(path string) (State, error)
	Restore(path, name string, before State) error
}
