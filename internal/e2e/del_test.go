package e2e

import (
	"os"
	"testing"

	"github.com/metacni/metacni/examples/lab/host"
)

// TestDELTriesEveryPlugin: a DEL runs every plugin even if one fails, reports
// the failure, and keeps the record until all have succeeded.
func TestDELTriesEveryPlugin(t *testing.T) {
	w := newWorld(t)
	p := w.pod(w.multinet("1.0.0", w.fake("a"), w.fake("b", "DEL", "fail"), w.fake("c")))
	w.ok("ADD", p)
	w.forget()
	w.fails(111, "DEL", p, []string{"no free device"})
	w.trace("DEL c net2", "DEL b net1", "DEL a eth0")
	w.forget()
	w.fails(111, "DEL", p, nil, withoutNetNS)
	w.trace("DEL b net1") // only b has not succeeded yet
	same(t, "attached", 1, len(w.live()))
	if len(w.list(w.file("state"))) == 0 {
		t.Error("b is attached and there is no record")
	}
}

// TestRepeatedDELSucceeds: a DEL of a container that was never attached, or is
// already detached, succeeds, with or without a namespace and with another
// configuration.
func TestRepeatedDELSucceeds(t *testing.T) {
	w := newWorld(t)
	p := w.pod(w.multinet("1.0.0", w.fake("a"), w.fake("b")))
	w.ok("DEL", p)
	w.ok("ADD", p)
	p.conf["delegates"] = []object{w.fake("z")}
	w.ok("DEL", p)
	w.ok("DEL", p)
	w.ok("DEL", p, withoutNetNS)
	w.trace("ADD a eth0", "ADD b net1", "DEL b net1", "DEL a eth0")
	w.nothingLeft()
}

// TestDELWithoutItsNamespaceReleasesEverything: a DEL after the namespace has
// disappeared releases the addresses and the interfaces on the host.
func TestDELWithoutItsNamespaceReleasesEverything(t *testing.T) {
	w := newWorld(t)
	p := w.pod(w.multinet("1.0.0", w.bridge(1), w.fake("b")))
	w.ok("ADD", p)
	same(t, "leases", 1, len(w.leases()))
	w.vanish(p)
	w.ok("DEL", p, withoutNetNS)
	w.nothingLeft()
}

// TestDELSparesANamespaceAtAReusedPath: a DEL leaves alone the namespace of
// another container that now has the same path.
func TestDELSparesANamespaceAtAReusedPath(t *testing.T) {
	w := newWorld(t)
	p := w.pod(w.multinet("1.0.0", w.bridge(1), w.fake("b")))
	w.ok("ADD", p)
	w.vanish(p)
	if _, err := host.NewNS(p.id); err != nil {
		t.Fatal(err)
	}
	other := w.pod(w.multinet("1.0.0", w.bridge(1)))
	other.netns = p.netns
	w.ok("ADD", other)
	w.ok("DEL", p, withoutNetNS)
	same(t, "the other's interfaces", []string{"eth0"}, w.interfaces(other))
	for _, c := range w.calls() {
		if c.Command == "DEL" && c.NetNS != "" {
			t.Errorf("the plugin was given %s", c.NetNS)
		}
	}
	w.ok("DEL", other)
	w.nothingLeft()
}

// TestCHECKAndDELReplayTheADD: CHECK and DEL pass the plugins the configuration
// of ADD unchanged, including large numbers and unknown keys.
func TestCHECKAndDELReplayTheADD(t *testing.T) {
	w := newWorld(t)
	conf := w.with(w.fake("a"), object{"big": number("9007199254740993"), "odd": object{"é%": []any{nil, number("1.50")}}})
	p := w.pod(w.multinet("1.0.0", conf))
	w.ok("ADD", p)
	p.conf["delegates"] = []object{w.fake("z")}
	w.ok("CHECK", p)
	w.ok("DEL", p)
	calls := w.calls()
	if len(calls) != 3 {
		t.Fatalf("%d calls, want 3", len(calls))
	}
	for _, c := range calls {
		same(t, c.Command+" ID", "a", c.ID)
		same(t, c.Command+" big", "9007199254740993", w.key(c.Stdin, "big"))
		same(t, c.Command+" odd", `{"é%":[null,1.50]}`, w.key(c.Stdin, "odd"))
		same(t, c.Command+" netns", p.netns, c.NetNS)
		if c.Command != "ADD" {
			same(t, c.Command+" args", calls[0].Args, c.Args)
		}
	}
	w.nothingLeft()
}

// TestCHECKReportsAMissingInterface: CHECK fails if an interface has
// disappeared, or if the container is not attached.
func TestCHECKReportsAMissingInterface(t *testing.T) {
	w := newWorld(t)
	second := w.name("second")
	w.network(second, w.with(w.bridge(2), object{"cniVersion": "1.0.0"}))
	p := w.pod(w.multinet("1.0.0", w.bridge(1)))
	p.annotations = map[string]string{annotation: second}
	w.ok("ADD", p)
	w.ok("CHECK", p)
	w.deleteLink(p, "net1")
	if a := w.call("CHECK", p); a.err == nil {
		t.Error("CHECK succeeded without net1")
	}
	w.ok("DEL", p)
	w.nothingLeft()
	if a := w.call("CHECK", p); a.err == nil {
		t.Error("CHECK of a detached container succeeded")
	}
}

// TestDamagedRecordHarmsOnlyItsContainer: a damaged record affects only its own
// container, and every command of that container reports it until an operator
// acts.
func TestDamagedRecordHarmsOnlyItsContainer(t *testing.T) {
	w := newWorld(t)
	p, other := w.pod(w.multinet("1.0.0", w.fake("a"))), w.pod(w.multinet("1.0.0", w.fake("b")))
	w.ok("ADD", p)
	file := w.recordFile(p, "state")
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, make([]byte, info.Size()), 0o600); err != nil {
		t.Fatal(err)
	}
	w.forget()
	for range 2 {
		w.fails(5, "DEL", p, nil)
		w.fails(5, "CHECK", p, nil)
		w.fails(5, "ADD", p, nil)
	}
	w.trace()
	w.ok("ADD", other)
	w.ok("DEL", other)
	same(t, "attached", 1, len(w.live()))
}
