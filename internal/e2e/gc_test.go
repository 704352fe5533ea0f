package e2e

import (
	"fmt"
	"os"
	"testing"
)

// TestGCRemovesOnlyStaleContainers: GC removes everything of a container that
// the runtime no longer lists, including additional networks, and nothing of
// the others. While a valid container has no record, the plugins of further networks
// are not told.
func TestGCRemovesOnlyStaleContainers(t *testing.T) {
	w := newWorld(t)
	second := w.name("second")
	w.network(second, w.with(w.bridge(2), object{"cniVersion": "1.1.0"}))
	conf := w.multinet("1.1.0", w.bridge(1), w.with(w.fake("f"), object{"name": "fakes"}))
	stays, stale, stranger := w.pod(conf), w.pod(conf), w.pod(conf)
	for _, p := range []*pod{stays, stale} {
		p.annotations = map[string]string{annotation: second}
		w.ok("ADD", p)
	}
	same(t, "leases", 4, len(w.leases()))
	w.vanish(stale)
	w.forget()

	w.fails(11, "GC", stays, []string{"fakes", second, stranger.id + " (eth0)"}, valid(stays, stranger))
	for _, c := range w.calls() {
		if c.Command == "GC" {
			t.Errorf("told %s", c.Stdin)
		}
	}
	w.ok("GC", stays, valid(stays))
	same(t, "leases", 2, len(w.leases()))
	same(t, "attached", []string{"f@" + stays.id + "@net1"}, w.live())
	same(t, "interfaces", []string{"eth0", "net2"}, w.interfaces(stays))
	w.ok("CHECK", stays)

	// The delegates get the list of what remains, with their interface names.
	var told []string
	for _, c := range w.calls() {
		if c.Command == "GC" {
			told = append(told, w.key(c.Stdin, "cni.dev/valid-attachments"))
		}
	}
	same(t, "told", []string{fmt.Sprintf(`[{"containerID":%q,"ifname":"net1"}]`, stays.id)}, told)
	w.ok("DEL", stays)
	w.ok("GC", stays, valid())
	w.nothingLeft()
}

// TestGCWithoutAListDeletesNothing: a GC without a list of valid attachments
// fails and deletes nothing.
func TestGCWithoutAListDeletesNothing(t *testing.T) {
	w := newWorld(t)
	p := w.pod(w.multinet("1.1.0", w.fake("a")))
	w.ok("ADD", p)
	w.fails(7, "GC", p, nil)
	w.fails(7, "GC", p, nil, func(_ map[string]string, conf object) { conf["cni.dev/valid-attachments"] = nil })
	same(t, "attached", 1, len(w.live()))
	w.ok("GC", p, valid(p))
	same(t, "attached", 1, len(w.live()))
	w.ok("DEL", p)
	w.nothingLeft()
}

// TestSTATUSReportsWhatIsNotReady: STATUS returns a delegate's own code if it
// is not ready, and code 50 if the readiness indicator file is missing. GC and
// DEL do not wait for that file.
func TestSTATUSReportsWhatIsNotReady(t *testing.T) {
	w := newWorld(t)
	p := w.pod(w.multinet("1.1.0", w.with(w.fake("a", "STATUS", "fail"), object{"code": 51})))
	w.fails(51, "STATUS", p, nil)
	delete(p.conf["delegates"].([]object)[0], "on")
	w.ok("STATUS", p)
	w.ok("ADD", p)

	indicator := w.file("ready-to-go")
	p.conf["readinessindicatorfile"] = indicator
	w.fails(50, "STATUS", p, []string{"ready-to-go"})
	w.ok("GC", p, valid(p))
	w.ok("DEL", p)
	w.fails(11, "ADD", p, []string{"ready-to-go"})
	if err := os.WriteFile(indicator, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.ok("STATUS", p)
	w.ok("ADD", p)
	w.ok("DEL", p)
	w.nothingLeft()
}
