package e2e

import "testing"

// TestDELWithoutTheDaemonLeavesNoRules: pods are deleted while the daemon is dead. The
// shims execute the DELs while the namespaces exist, so that bridge finds its ipMasq
// rules, and nothing is left for the next daemon.
func TestDELWithoutTheDaemonLeavesNoRules(t *testing.T) {
	w := newWorld(t)
	w.needsRules()
	d := w.daemon(daemonConf{})
	// Only the daemon's file says where the records are.
	conf := func() object {
		return w.with(w.thick("1.1.0", w.ruled(1), w.ruled(2)), object{"cniDir": nil})
	}
	pods := w.newPods(3, conf)
	for _, p := range pods {
		w.ok("ADD", p)
	}
	if len(w.rules()) == 0 {
		t.Fatal("no rules to leave")
	}
	d.kill()
	for _, p := range pods {
		w.ok("DEL", p)
	}
	same(t, "queued", nil, w.queued())
	same(t, "rules", nil, w.rules())
	for _, p := range pods {
		same(t, "interfaces", nil, w.interfaces(p))
	}
	w.nothingLeft()
	for range 2 { // the runtime repeats it
		w.allOK("DEL", pods)
	}
	w.daemon(daemonConf{})
	for _, p := range pods {
		w.ok("ADD", p)
		w.ok("DEL", p)
	}
	w.noTrace()
	same(t, "rules", nil, w.rules())
}
