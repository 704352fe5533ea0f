//go:build !linux

package delegatetest

import (
	"errors"
	"fmt"
)

// NewNetNS fails with an [errors.ErrUnsupported]: only Linux has network
// namespaces.
func NewNetNS(_, _ string) (path string, remove func(), err error) {
	return "", nil, fmt.Errorf("%w: only Linux has network namespaces", errors.ErrUnsupported)
}
