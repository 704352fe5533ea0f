//go:build !linux

package ifname_test

import (
	"errors"
	"testing"

	"github.com/metacni/metacni/ifname"
)

func TestTakenUnsupported(t *testing.T) {
	t.Parallel()
	names, err := ifname.Taken("/var/run/netns/x")
	var e *ifname.Error
	if names != nil || !errors.Is(err, errors.ErrUnsupported) || !errors.As(err, &e) || e.CNICode() != 0 {
		t.Errorf("Taken = %q, %v", names, err)
	}
}
