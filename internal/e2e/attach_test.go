package e2e

import (
	"os"
	"testing"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// agent returns a node agent: a process other than multinet that works on the
// same records.
func (w *world) agent() *lifecycle.Manager {
	return &lifecycle.Manager{
		Dir: w.file("state"),
		Invoker: &delegate.Invoker{
			Exec: &delegate.Process{Stderr: os.Stderr},
			Path: []string{w.bin},
			Env:  []string{"PATH=" + w.path},
		},
	}
}

// recordKey returns the key of multinet's record of p.
func recordKey(p *pod) scratch.Key {
	return scratch.Key{Network: p.conf["name"].(string), ContainerID: p.id, IfName: p.ifname}
}

// oneMore returns an attachment of p to one more network, which has one plugin.
func (w *world) oneMore(p *pod, name, ifname string, conf object) delegate.Attachment {
	w.t.Helper()
	w.write(w.with(conf, object{"name": name, "cniVersion": "1.1.0"}), name+".conf")
	n, err := netconf.LoadFile(w.file(name + ".conf"))
	if err != nil {
		w.t.Fatal(err)
	}
	return delegate.Attachment{Network: n, ContainerID: p.id, NetNS: p.netns, IfName: ifname}
}

// TestAgentAttachesOneMoreNetwork: CHECK and GC of multinet include the
// networks that an agent attaches to a running container, and DEL removes them.
func TestAgentAttachesOneMoreNetwork(t *testing.T) {
	w := newWorld(t)
	p := w.pod(w.multinet("1.1.0", w.bridge(1), w.fake("a")))
	w.ok("ADD", p)
	agent, ctx := w.agent(), t.Context()
	for _, a := range []delegate.Attachment{
		w.oneMore(p, w.name("more"), "more0", w.bridge(5)),
		w.oneMore(p, "fakes", "more1", w.fake("h")),
	} {
		if _, err := agent.Attach(ctx, recordKey(p), lifecycle.Transaction{Plan: lifecycle.Plan(a)}); err != nil {
			t.Fatal(err)
		}
	}
	same(t, "interfaces", []string{"eth0", "more0"}, w.interfaces(p))
	w.ok("CHECK", p)
	w.ok("GC", p, valid(p))
	same(t, "interfaces", []string{"eth0", "more0"}, w.interfaces(p))
	w.ok("DEL", p)
	same(t, "interfaces", nil, w.interfaces(p))
	w.nothingLeft()
}

// TestDELWaitsForAnAgentAndRemovesItsNetwork: a DEL of multinet waits while an
// agent attaches a network to the container, and then removes that network too.
func TestDELWaitsForAnAgentAndRemovesItsNetwork(t *testing.T) {
	w := newWorld(t)
	p := w.pod(w.multinet("1.1.0", w.fake("a")))
	w.ok("ADD", p)
	done := make(chan error, 1)
	more := w.oneMore(p, "more", "more0", w.fake("h", "ADD", "gate"))
	go func() {
		_, err := w.agent().Attach(t.Context(), recordKey(p), lifecycle.Transaction{Plan: lifecycle.Plan(more)})
		done <- err
	}()
	w.ready()
	del := w.start("DEL", p, withoutNetNS)
	w.waitsForLock(del)
	w.open()
	if err := <-done; err != nil {
		t.Error(err)
	}
	w.done(del)
	w.trace("ADD a eth0", "ADD h more0", "DEL h more0", "DEL a eth0")
	w.nothingLeft()
}

// TestAgentRemovesWhatAKilledADDLeft: an agent finds the unfinished ADD of a
// killed multinet and removes what it attached.
func TestAgentRemovesWhatAKilledADDLeft(t *testing.T) {
	w := newWorld(t)
	whole := w.pod(w.multinet("1.1.0", w.fake("whole")))
	w.ok("ADD", whole)
	p := w.pod(w.multinet("1.1.0", w.fake("a"), w.fake("b", "ADD", "gate")))
	w.killed("ADD", p)
	w.open()
	w.orphansEnd()

	agent := w.agent()
	broken, err := agent.Container(t.Context(), recordKey(p).ContainerID)
	if err != nil {
		t.Fatal(err)
	}
	if len(broken) != 1 || broken[0].Key != recordKey(p) || broken[0].State == scratch.Added {
		t.Fatalf("records: %v", broken)
	}
	if err := agent.Del(t.Context(), lifecycle.Removal{Key: broken[0].Key}); err != nil {
		t.Fatal(err)
	}
	same(t, "attached", []string{"whole@" + whole.id + "@eth0"}, w.live())
	w.ok("DEL", p)
	w.ok("DEL", whole)
	w.nothingLeft()
}
