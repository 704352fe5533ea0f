package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// TestDaemonInAContainerWorksOnTheHostsRoot: a daemon in a container has the host's root directory somewhere.
// Plugins are looked up and run in there, by 16 requests at once, and so are
// network namespaces, records, queue and socket.
func TestDaemonInAContainerWorksOnTheHostsRoot(t *testing.T) {
	w := newWorld(t)
	root := w.file("root")
	for _, dir := range []string{"opt/cni/bin", "fake/live", "run/netns", "proc", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(built(t, "fake"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "opt/cni/bin/fake"), text, 0o700); err != nil {
		t.Fatal(err)
	}
	// What the node has there, the tests have by links.
	if err := os.MkdirAll(filepath.Join(root, w.dir), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"d", "queue", "state"} {
		if err := os.Symlink(filepath.Join(root, w.file(dir)), w.file(dir)); err != nil {
			t.Fatal(err)
		}
	}
	w.daemon(daemonConf{args: []string{"--root", root}})
	fake := func(id string) object { return w.with(w.fake(id), object{"dir": "/fake"}) } // as it is in there
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
	// The host's own namespace is refused under its name in there as well.
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
