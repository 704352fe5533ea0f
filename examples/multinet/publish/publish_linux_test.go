package publish

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/autoconf"
)

func manager(t *testing.T) *autoconf.Manager {
	t.Helper()
	template, err := netconf.Plugin{}.Edit(netconf.Set("type", "x"), Annotations())
	nodetest.OK(t, err)
	dir := t.TempDir()
	m := Manager(dir, filepath.Join(dir, Output), template)
	m.Debounce = 1
	return m
}

func write(t *testing.T, m *autoconf.Manager, file, network string) {
	t.Helper()
	nodetest.OK(t, os.WriteFile(filepath.Join(m.Dir, file), []byte(network), 0o600))
}

// Networks that a pod cannot use, or would be attached to twice, are skipped.
func TestPrimary(t *testing.T) {
	t.Parallel()
	for network, taken := range map[string]bool{
		`{"cniVersion":"1.0.0","name":"a","type":"bridge"}`:                                                   true,
		`{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"loopback"},{"type":"bridge"}]}`:                 true,
		`{"cniVersion":"1.0.0","name":"a","type":"loopback"}`:                                                 false,
		`{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"loopback"},{"type":"loopback"}]}`:               false,
		`{"cniVersion":"1.0.0","name":"a","type":"multus"}`:                                                   false,
		`{"cniVersion":"1.0.0","name":"a","type":"multus-shim"}`:                                              false,
		`{"cniVersion":"1.0.0","name":"a","type":"multinet"}`:                                                 false,
		`{"cniVersion":"1.0.0","name":"a","type":"multinet-shim"}`:                                            false,
		`{"cniVersion":"1.0.0","name":"a","type":"x"}`:                                                        false,
		`{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"some","delegates":[{"type":"multinet"}]}]}`:     false,
		`{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"some","delegates":[{"type":"multinet-not"}]}]}`: true,
	} {
		m := manager(t)
		write(t, m, "10-a.conflist", network)
		if err := m.Publish(); (err == nil) != taken || err != nil && !errors.Is(err, autoconf.ErrNoPrimary) {
			t.Errorf("%s: %v", network, err)
		}
	}
}
