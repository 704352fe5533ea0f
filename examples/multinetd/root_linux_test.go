package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/metacni/metacni/examples/internal/daemon"
	"github.com/metacni/metacni/internal/nodetest"

	"github.com/metacni/metacni/delegate"
)

// With chrootDir plugins are found and run in the root of the node. The paths they
// receive are the node's: those of binDir and of the network namespace, which the
// DEL takes from the record.
func TestPluginsRunInTheRoot(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to change the root directory of a child")
	}
	ldd, err := exec.CommandContext(t.Context(), "ldd", "/bin/sh").Output()
	if err != nil {
		t.Skipf("needs ldd(1), to copy a shell with its libraries: %v", err)
	}
	root := t.TempDir()
	put := func(path, text string) {
		t.Helper()
		nodetest.OK(t, errors.Join(os.MkdirAll(filepath.Dir(root+path), 0o755), os.WriteFile(root+path, []byte(text), 0o755)))
	}
	for _, path := range append([]string{"/bin/sh"}, regexp.MustCompile(`/[^ ]+`).FindAllString(string(ldd), -1)...) {
		text, err := os.ReadFile(path)
		nodetest.OK(t, err)
		put(path, string(text))
	}
	put("/run/netns/c1", "")
	put("/tmp/.keep", "")
	put("/opt/cni/bin/inside", `#!/bin/sh
echo "$CNI_COMMAND $CNI_NETNS $(pwd)" >>/log
[ $CNI_COMMAND = ADD ] && echo '{"cniVersion":"1.1.0"}'
exit 0
`)
	w := newWorld(t, fmt.Sprintf(`,"chrootDir":%q`, root))
	w.exec = &daemon.Exec{Process: delegate.Process{Root: w.conf.ChrootDir}, Log: w.log}
	w.start(t)
	args := w.args(conf(`"delegates":[{"type":"inside"}]`))
	args.Netns = "/run/netns/c1"
	nodetest.OK(t, w.client.Execute(t.Context(), "ADD", args))
	args.Netns = "" // that of the record
	nodetest.OK(t, w.client.Execute(t.Context(), "DEL", args))
	log, err := os.ReadFile(root + "/log")
	if want := "ADD /run/netns/c1 /\nDEL /run/netns/c1 /"; err != nil || strings.TrimSpace(string(log)) != want {
		t.Errorf("the plugin wrote %q, want %q: %v", log, want, err)
	}
}

// With chrootDir the socket, the queue and the records are where the node has them,
// whatever links it has and whatever the daemon's own root has at these paths. The
// DEL that a shim of the node has queued is done. When the node's links change, the
// daemon is not ready.
func TestQueueIsTheOneOfTheNode(t *testing.T) {
	t.Parallel()
	root := node(t)
	nodetest.OK(t, os.Symlink("/data/tmp", root+"/tmp")) // in the daemon's own root there is no such thing
	w := newWorld(t, fmt.Sprintf(`,"chrootDir":%q`, root))
	onNode := filepath.Join(root, "data", w.dir)
	if got, want := []string{w.conf.SocketDir, w.conf.QueueDir, w.conf.stateDir}, []string{onNode + "/run", onNode + "/queue", onNode + "/state"}; !slices.Equal(got, want) {
		t.Fatalf("directories %q, want %q", got, want)
	}
	// The mark of the daemon before this one.
	nodetest.OK(t, errors.Join(os.MkdirAll(onNode+"/queue", 0o700), os.WriteFile(onNode+"/queue/.reader", nil, 0o600)))
	w.mustRun(t, "DEL", bridge) // there is no daemon
	if queued, err := filepath.Glob(onNode + "/queue/*.json"); len(queued) == 0 {
		t.Fatalf("nothing is queued: %v", err)
	}
	replayed := w.replayed()
	w.start(t)
	<-replayed
	if code, body := w.get(t, "/readyz"); code != 200 {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if log := w.logged.String(); !strings.Contains(log, `"replayed":true`) {
		t.Errorf("the DEL was not done:\n%s", log)
	}
	w.mustRun(t, "ADD", bridge)
	w.mustRun(t, "DEL", bridge)
	if outside, _ := filepath.Glob(w.dir + "/[qs]*"); len(outside) > 0 {
		t.Errorf("made outside of the root: %q", outside)
	}

	nodetest.OK(t, errors.Join(os.Remove(root+"/tmp"), os.Symlink("/data/new", root+"/tmp")))
	if code, body := w.get(t, "/readyz?verbose"); code == 200 || !strings.Contains(body, "queueDir") {
		t.Errorf("/readyz with another queue: %d %s", code, body)
	}
}
