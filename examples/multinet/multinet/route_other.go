//go:build !linux

package multinet

import (
	"errors"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
)

func moveDefaultRoute(plugin.Root, []choice, []delegate.Attached) error {
	return errors.ErrUnsupported
}
