package e2e

import (
	"os"
	"testing"

	"github.com/metacni/metacni/examples/lab/host"
)

// TestDELTriesEveryPlugin: a DEL tries every plugin whatever fails, says so,
// and keeps the record until all have succeeded (D2, D35).
func TestDELTriesEveryPlugin(t *testing.T) {
	w := newWorld(t)
	p := w.pod(w.multinet("1.0.0", w.fake("a"), w.fake("b", "DEL", "fail"), w.fake("c")))
	w.ok("ADD", p)
	w.forget()
	w.fails(111, "DEL", p, []string{"no free device"})
	w.trace("DEL c net2", "DEL b net1", "DEL a eth0")
	w.forget()
	w.fails(111, "DEL", p, nil, withoutNetNS)
	w.trace("DEL b net1") // the others have nothing left
	same(t, "attached", 1, len(w.live()))
	if len(w.list(w.file("state"))) == 0 {
		t.Error("something is left and nothing is recorded")
	}
}

// TestRepeatedDELSucceeds: what was never attached, or is detached already, is success,
// with or without a namespace, and with a configuration that has become
// another (D34).
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

// TestDELWithoutItsNamespaceReleasesEverything: a DEL after the namespace has gone releases addresses
// and what is on the host.
func TestDELWithoutItsNamespaceReleasesEverything(t *testing.T) {
	w := newWorld(t)
	p := w.pod(w.multinet("1.0.0", w.bridge(1), w.fake("b")))
	w.ok("ADD", p)
	same(t, "leases", 1, len(w.leases()))
	w.vanish(p)
	w.ok("DEL", p, withoutNetNS)
	w.nothingLeft()
}

// TestDELSparesANamespaceAtAReusedPath: another container's namespace that has come to the same
// path does not lose its interface.
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

// TestCHECKAndDELReplayTheADD: CHECK and DEL get the configuration of ADD, byte for byte
// where it counts: big numbers and unknown keys survive (D7, D8).
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

// TestCHECKReportsAMissingInterface: CHECK finds that an interface has gone.
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
		t.Error("CHECK does not miss net1")
	}
	w.ok("DEL", p)
	w.nothingLeft()
	if a := w.call("CHECK", p); a.err == nil {
		t.Error("CHECK is content with what is not attached")
	}
}

// TestDamagedRecordHarmsOnlyItsContainer: a damaged record harms its own container only, and is
// reported until somebody deals with it (D4, D5).
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
