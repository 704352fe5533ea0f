//go:build unix && !linux

package programtest

import "testing"

const holder = "holder"

func newNetNS(t testing.TB) string {
	t.Helper()
	t.Skip("needs Linux")
	return ""
}
