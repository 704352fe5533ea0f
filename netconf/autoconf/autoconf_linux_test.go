package autoconf

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metacni/metacni/netconf"
)

func TestInvalidManager(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Manager){
		"zero":               func(m *Manager) { m.Dir, m.Output, m.Template = "", "", netconf.Plugin{} },
		"relative Dir":       func(m *Manager) { m.Dir = "net.d" },
		"relative Output":    func(m *Manager) { m.Output = "00-multinet" },
		"Output is /":        func(m *Manager) { m.Output = "/" },
		"Output is .conf":    func(m *Manager) { m.Output = m.Dir + "/.conf" },
		"relative Ready":     func(m *Manager) { m.Ready = "ready" },
		"relative plugin":    func(m *Manager) { m.ClusterNetworkDir = "x" },
		"Primary a path":     func(m *Manager) { m.Primary = "../10-a.conf" },
		"Primary is ours":    func(m *Manager) { m.Primary = "00-multinet.conflist" },
		"Template's name":    func(m *Manager) { m.Template = plugin(`{"type":"multinet","name":"../x"}`) },
		"Template's version": func(m *Manager) { m.Template = plugin(`{"type":"multinet","cniVersion":"x"}`) },
		"Template's network": func(m *Manager) { m.Template = plugin(`{"type":"multinet","clusterNetwork":"x"}`) },
		"Template's number":  func(m *Manager) { m.Template = plugin(`{"type":"multinet","n":1e999}`) },
		"no Template":        func(m *Manager) { m.Template = netconf.Plugin{} },
		"relative Root":      func(m *Manager) { m.Root = "host" },
		"Lock in Dir":        func(m *Manager) { m.Lock = m.Dir + "/lock" },
		"Lock via link":      func(m *Manager) { m.Lock = m.Dir + "/../" + filepath.Base(m.Dir) + "/lock" },
		"Mode":               func(m *Manager) { m.Mode = 0o600 | fs.ModeSetuid },
		"Grace":              func(m *Manager) { m.Grace = -1 },
	} {
		m := newManager(t, "10-a.conf", flannel)
		change(m)
		for verb, do := range map[string]func() error{"publish": m.Publish, "run": func() error { return m.Run(t.Context()) }, "uninstall": m.Uninstall, "find": func() error { _, err := m.Find(); return err }} {
			err := do()
			var e *Error
			if !errors.Is(err, ErrInvalid) || !errors.As(err, &e) || e.CNICode() != 7 && e.CNICode() != 6 {
				t.Errorf("%s: %s: %v", name, verb, err)
			}
		}
	}
}

// What would be published in front of is told without publishing anything.
func TestFind(t *testing.T) {
	t.Parallel()
	m := newManager(t, "05-a.conf", "{", "10-a.conf", flannel)
	m.Ready = filepath.Join(m.Dir, "absent")
	p, err := m.Find()
	if err != nil || p.Name != "10-a.conf" || p.Network.Name() == "" {
		t.Errorf("%+v, %v", p, err)
	}
	m.Primary = "05-a.conf"
	if p, err = m.Find(); !errors.Is(err, ErrNoPrimary) || !strings.Contains(err.Error(), "05-a.conf") || p.Name != "" {
		t.Errorf("%+v, %v", p, err)
	}
	m.Dir = filepath.Join(m.Dir, "absent")
	if _, err = m.Find(); !errors.Is(err, ErrNoPrimary) || !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if s := m.State(); s.Written > 0 || s.Degraded != nil {
		t.Errorf("%+v", s)
	}
}
