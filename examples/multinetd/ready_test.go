package main

import (
	"os"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
)

// A daemon that does not become ready says why, once, in its log and to the service
// manager, and becomes ready when the reason is gone.
func TestDaemonThatIsNotReadySaysWhyOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	nodetest.OK(t, os.WriteFile(w.dir+"/state", nil, 0o600))
	w.begin(t)
	why := <-w.reasons
	if !strings.Contains(why, "not ready") || !strings.Contains(why, w.dir+"/state") {
		t.Errorf("the service manager is told %q", why)
	}
	nodetest.OK(t, os.Remove(w.dir+"/state"))
	if got := <-w.states; got != "READY=1" {
		t.Errorf("told %q", got)
	}
	if why := <-w.reasons; why != "ready" {
		t.Errorf("told %q", why)
	}
	if n := strings.Count(w.logged.String(), `"msg":"not ready"`); n != 1 {
		t.Errorf("logged %d times:\n%s", n, w.logged)
	}
}
