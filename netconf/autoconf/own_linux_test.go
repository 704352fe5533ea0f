package autoconf

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A network that names the published file is not the primary one, whether it
// spells the directory as a link or as what that leads to.
func TestNetworkThatNamesTheOutputIsOwn(t *testing.T) {
	t.Parallel()
	for _, spelled := range []string{"link", "real"} {
		up, err := filepath.EvalSymlinks(t.TempDir())
		ok(t, err)
		ok(t, os.Mkdir(filepath.Join(up, "real"), 0o700))
		ok(t, os.Symlink("real", filepath.Join(up, "link")))
		dir := filepath.Join(up, "link")
		loop := `{"cniVersion":"1.0.0","name":"x","plugins":[{"type":"multus","clusterNetwork":"` + filepath.Join(up, spelled, "00-multinet.conflist") + `"}]}`
		put(t, dir, "05-loop.conflist", loop, "10-a.conflist", calico)
		m := &Manager{Dir: dir, Output: filepath.Join(dir, "00-multinet"), Template: template}
		ok(t, m.Publish())
		if s := m.State(); s.Primary != "10-a.conflist" || len(s.Skipped) != 1 || !errors.Is(s.Skipped[0], errOwn) {
			t.Errorf("%s: %+v", spelled, s)
		}
	}
}

// The published file is never the primary network by another name: it would hold
// itself, once more each time.
func TestPublishedFileByAnotherNameIsOwn(t *testing.T) {
	t.Parallel()
	for name, link := range map[string]func(file, other string) error{"symbolic link": os.Symlink, "hard link": os.Link} {
		m := newManager(t, "10-a.conflist", calico)
		ok(t, m.Publish())
		ok(t, link(m.Output+".conflist", filepath.Join(m.Dir, "05-other.conflist")))
		ok(t, m.Publish())
		if s := m.State(); s.Primary != "10-a.conflist" || len(s.Skipped) != 1 || !errors.Is(s.Skipped[0], errOwn) {
			t.Errorf("%s: %+v", name, s)
		}
	}
}
