//go:build !linux

package plugin

import (
	"errors"
	"net/netip"

	"github.com/metacni/metacni/delegate/plugin"
)

func inNetNS(*plugin.Call, func() error) error { return errors.ErrUnsupported }

func removeOwnRoutes(string, bool) error { return errors.ErrUnsupported }

func replaceDefaultRoutes(string, netip.Addr) error { return errors.ErrUnsupported }

func findRoute(string, netip.Addr) error { return errors.ErrUnsupported }
