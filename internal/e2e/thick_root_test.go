package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// TestDaemonInAContainerWorksOnTheHostsRoot: a daemon in a container sees the
// host's root directory at some path. It looks up and runs plugins in that
// root, for 16 requests at the same time, and finds network namespaces,
// records, queue and socket there.
func TestDaemonInAContainerWorksOnTheHostsRoot(t *testing.T) {
	w := newWorld(t)
	root := w.file("root")
	for _, dir := range []string{"opt/cni/bin", "fake/live", "run/netns", "proc", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(built("fake"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "opt/cni/bin/fake"), text, 0o700); err != nil {
		t.Fatal(err)
	}
	// On a node these are the same directories; here they are links.
	if err := os.MkdirAll(filepath.Join(root, w.dir), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"d", "queue", "state"} {
		if err := os.Symlink(filepath.Join(root, w.file(dir)), w.file(dir)); err != nil {
			t.Fatal(err)
		}
	}
	w.daemon(daemonConf{args: []string{"--root", root}})
	fake := func(id string) object { return w.with(w.fake(id), object{"dir": "/fake"}) } // the path inside the root
	conf := func() object {
		return w.with(w.thick("1.1.0", fake("a"), fake("b")), object{"binDir": "/opt/cni/bin"})
	}
	pods := w.newPods(16, conf)
	for _, p := range pods {
		inside := filepath.Join(root, p.netns)
		if err := errors.Join(os.WriteFile(inside, nil, 0o600), unix.Mount(p.netns, inside, "", unix.MS_BIND, "")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(inside, unix.MNT_DETACH) })
	}
	live := func() int { return len(w.list(filepath.Join(root, "fake/live"))) }
	w.allOK("ADD", pods)
	same(t, "attached in the root", 32, live())
	same(t, "attached outside", nil, w.live())
	w.allOK("CHECK", pods)
	// The host's own namespace is refused, also by its path inside the root.
	hostNS := filepath.Join(root, "run/netns/host")
	if err := errors.Join(os.WriteFile(hostNS, nil, 0o600), unix.Mount("/proc/self/ns/net", hostNS, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(hostNS, unix.MNT_DETACH) })
	p := *pods[0]
	p.id, p.netns = "w-host", "/run/netns/host"
	r, err := w.ask("POST", wire.PathCNI, w.request("ADD", &p, nil))
	if err != nil {
		t.Fatal(err)
	}
	r.says(t, 500, 8)
	w.allOK("DEL", pods, withoutNetNS)
	same(t, "attached in the root", 0, live())
	w.noTrace()
}
