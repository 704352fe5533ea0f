package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// limitTasks lets d and its plugins have at most so many tasks, threads included, as a kubelet does.
func (d *daemon) limitTasks(most int) {
	d.n.Helper()
	parent := "/sys/fs/cgroup/pids" // of version 1
	if _, err := os.Stat(parent); err != nil {
		parent = "/sys/fs/cgroup"
	}
	dir := filepath.Join(parent, fmt.Sprintf("metacni-%d", d.cmd.Process.Pid))
	if err := os.Mkdir(dir, 0o700); err != nil {
		d.n.Skipf("no cgroup can be made: %v", err)
	}
	d.n.Cleanup(func() { nodetest.OK(d.n, os.Remove(dir)) })
	for file, value := range map[string]int{"pids.max": most, "cgroup.procs": d.cmd.Process.Pid} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(value)), 0); err != nil {
			d.n.Skipf("no cgroup limits processes: %v", err)
		}
	}
	d.n.Cleanup(d.kill)
}

// TestDaemonStaysBelowTheTasksOfItsPod: 200 containers are detached at once, and then as many
// networks of others hang as the daemon runs at once.
func TestDaemonStaysBelowTheTasksOfItsPod(t *testing.T) {
	n := newNode(t)
	d := n.daemon(unswept(map[string]string{"GOMAXPROCS": "2"})) // with more, more DELs have a turn
	d.limitTasks(512)
	pods := n.newPods(200, func() object { return n.thick("1.0.0", n.bridge(0)) })
	for some := range slices.Chunk(pods, 20) { // many at once may wait for their turns too long
		n.allOK("ADD", some)
	}
	n.allOK("DEL", pods)
	n.noTrace()

	pods = n.newPods(110, func() object { return n.thick("1.0.0", n.fake("a", "DEL", "gate")) })
	for some := range slices.Chunk(pods, 20) { // many at once may wait for their turns too long
		n.allOK("ADD", some)
	}
	dels := n.all("DEL", pods)
	for range pods {
		n.ready()
	}
	n.ok("ADD", n.pod(n.thick("1.0.0", n.bridge(0))))
	for range pods {
		n.open()
	}
	for _, r := range dels {
		n.done(r)
	}
}
