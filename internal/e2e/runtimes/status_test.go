package runtimes

import (
	"os"
	"strings"
	"testing"
)

// The node is not ready while its primary network is missing, and ready again when it is
// back. Pods that run are not concerned.
func TestNodeIsNotReadyWithoutItsPrimaryNetwork(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.writeJSON("net.d/10-primary.conflist", n.primary())
	n.writeJSON("more.json", object{"confDir": n.file("networks"), "binDir": os.Getenv(binEnv)})
	n.tool(0, "install", "--conf-dir", n.file("net.d"), "--host-conf-dir", n.file("net.d"), "--bin-dir", os.Getenv(binEnv),
		"--cni-dir", n.file("state"), "--config", n.file("more.json"))
	n.boot()
	n.waitForNetwork("multinet")
	p := n.newPod("").run()
	ready := func(want bool, word string) {
		t.Helper()
		eventually(t, func() bool {
			got, message := n.networkReady()
			return got == want && strings.Contains(message, word)
		})
	}
	ready(true, "")
	if err := os.Remove(n.file("net.d/10-primary.conflist")); err != nil {
		t.Fatal(err)
	}
	ready(false, "10-primary.conflist")
	p.answers()
	n.writeJSON("net.d/10-primary.conflist", n.primary())
	ready(true, "")
	p.stop()
	n.wantNothing()
}
