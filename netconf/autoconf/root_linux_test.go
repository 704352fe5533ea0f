package autoconf

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// node returns the root directory of a node, with a manager of its network. The
// node has absolute links wherever it can, which lead to other files outside.
func node(t *testing.T) (root string, m *Manager) {
	t.Helper()
	root = t.TempDir()
	for _, dir := range []string{"data/net.d", "data/run", "etc/cni", "opt"} {
		ok(t, os.MkdirAll(filepath.Join(root, dir), 0o700))
	}
	for link, to := range map[string]string{
		"etc/cni/net.d":                "/data/net.d",
		"run":                          "/data/run",
		"data/run/ready":               "/opt/ready",
		"data/net.d/05-out.conflist":   filepath.Join(t.TempDir(), "out.conflist"),
		"data/net.d/10-link.conflist":  "/opt/link.conflist",
		"data/net.d/20-other.conflist": "../../../../../../../../../../opt/other.conflist",
	} {
		ok(t, os.Symlink(to, filepath.Join(root, link)))
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
	ok(t, m.Publish())
	s := m.State()
	if s.Published != "/etc/cni/net.d/00-multinet.conflist" || s.Network != "link" || len(s.Skipped) != 1 {
		t.Errorf("%+v", s)
	}
	if got := delegate(t, filepath.Join(root, "data/net.d/00-multinet.conflist")); got != "link" {
		t.Errorf("%s is published", got)
	}
	ok(t, m.Uninstall())
	want := []string{".multinet", "05-out.conflist", "10-link.conflist", "20-other.conflist"}
	if diff := cmp.Diff(want, list(t, filepath.Join(root, "data/net.d"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	ok(t, os.Remove(filepath.Join(root, "opt/ready")))
	if err := m.Publish(); !errors.Is(err, ErrNotReady) {
		t.Error(err)
	}
}

// A network that names the published file as the node does is our own.
func TestOutputInRootIsOwn(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"/etc/cni/net.d", "/data/net.d"} {
		root, m := node(t)
		put(t, root, "opt/link.conflist", `{"cniVersion":"1.0.0","name":"x","plugins":[{"type":"multus","clusterNetwork":"`+dir+`/00-multinet.conflist"}]}`)
		if f, err := m.Find(); f.Name != "20-other.conflist" || err != nil {
			t.Errorf("%s: found %s, %v", dir, f.Name, err)
		}
	}
}

// What links of the node lead to is watched.
func TestFilesInRootAreWatched(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(root string) error{
		"the file that a link leads to": func(root string) error {
			return os.WriteFile(filepath.Join(root, "opt/link.conflist"), []byte(net("new")), 0o600)
		},
		"where a link leads to": func(root string) error {
			file := filepath.Join(root, "data/net.d/10-link.conflist")
			return errors.Join(
				os.WriteFile(filepath.Join(root, "opt/new.conflist"), []byte(net("new")), 0o600),
				os.Symlink("/opt/new.conflist", file+".tmp-1"), os.Rename(file+".tmp-1", file),
			)
		},
		"the directory": func(root string) error {
			return errors.Join(
				os.Mkdir(filepath.Join(root, "data/new.d"), 0o700),
				os.WriteFile(filepath.Join(root, "data/new.d/10-new.conflist"), []byte(net("new")), 0o600),
				os.Symlink("/data/new.d", filepath.Join(root, "etc/cni/new")),
				os.Rename(filepath.Join(root, "etc/cni/new"), filepath.Join(root, "etc/cni/net.d")),
			)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, m := node(t)
			m.Lock = ""
			running(t, m)
			until(t, m, "published", func(s State) bool { return s.Network == "link" && s.Degraded == nil })
			ok(t, change(root))
			until(t, m, "published again", func(s State) bool { return s.Network == "new" && s.Published != "" && s.Degraded == nil })
		})
	}
}
