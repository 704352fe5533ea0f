//go:build !linux

package nodetest

import "testing"

// NetNS skips the test: other systems have no network namespaces.
func NetNS(tb testing.TB, _ string) (end func()) {
	tb.Helper()
	tb.Skip("needs Linux")
	return nil
}
