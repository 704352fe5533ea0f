package autoconf

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
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
			if !errors.Is(err, ErrInvalid) || status.Code(err) != 7 && status.Code(err) != 6 {
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

// The published file is never the primary network by another name: it would hold
// itself, once more each time.
func TestPublishedFileByAnotherNameIsOwn(t *testing.T) {
	t.Parallel()
	for name, link := range map[string]func(file, other string) error{"symbolic link": os.Symlink, "hard link": os.Link} {
		m := newManager(t, "10-a.conflist", calico)
		nodetest.OK(t, m.Publish())
		nodetest.OK(t, link(m.Output+".conflist", filepath.Join(m.Dir, "05-other.conflist")))
		nodetest.OK(t, m.Publish())
		if s := m.State(); s.Primary != "10-a.conflist" || len(s.Skipped) != 1 || !errors.Is(s.Skipped[0], errOwn) {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// node returns the root directory of a node, with a manager of its network. The
// node has absolute links wherever it can, which lead to other files outside.
func node(t *testing.T) (root string, m *Manager) {
	t.Helper()
	root = t.TempDir()
	for _, dir := range []string{"data/net.d", "data/run", "etc/cni", "opt"} {
		nodetest.OK(t, os.MkdirAll(filepath.Join(root, dir), 0o700))
	}
	for link, to := range map[string]string{
		"etc/cni/net.d":                "/data/net.d",
		"run":                          "/data/run",
		"data/run/ready":               "/opt/ready",
		"data/net.d/05-out.conflist":   filepath.Join(t.TempDir(), "out.conflist"),
		"data/net.d/10-link.conflist":  "/opt/link.conflist",
		"data/net.d/20-other.conflist": "../../../../../../../../../../opt/other.conflist",
	} {
		nodetest.OK(t, os.Symlink(to, filepath.Join(root, link)))
		if filepath.Base(link) == "05-out.conflist" {
			put(t, filepath.Dir(to), "out.conflist", net("out"))
		}
	}
	put(t, root, "opt/ready", "", "opt/link.conflist", net("link"), "opt/other.conflist", net("other"))
	return root, &Manager{
		Root: root, Dir: "/etc/cni/net.d", Output: "/etc/cni/net.d/00-multinet", Ready: "/run/ready",
		Lock: "/etc/cni/net.d/.multinet/lock", Template: plugin(`{"type":"multinet"}`),
	}
}

// Links of the node, also those of a single file, are followed in its root, and
// nothing is read or written outside.
func TestLinksAreFollowedInRoot(t *testing.T) {
	t.Parallel()
	root, m := node(t)
	if f, err := m.Find(); f.Name != "10-link.conflist" || err != nil {
		t.Errorf("found %s, %v", f.Name, err)
	}
	nodetest.OK(t, m.Publish())
	s := m.State()
	if s.Published != "/etc/cni/net.d/00-multinet.conflist" || s.Network != "link" || len(s.Skipped) != 1 {
		t.Errorf("%+v", s)
	}
	nodetest.Equal(t, "what is published", delegate(t, filepath.Join(root, "data/net.d/00-multinet.conflist")), "link")
	nodetest.OK(t, m.Uninstall())
	want := []string{".multinet", "05-out.conflist", "10-link.conflist", "20-other.conflist"}
	nodetest.Equal(t, "got", list(t, filepath.Join(root, "data/net.d")), want)
	nodetest.OK(t, os.Remove(filepath.Join(root, "opt/ready")))
	nodetest.Is(t, m.Publish(), ErrNotReady)
}
