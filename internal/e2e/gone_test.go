package e2e

import (
	"os"
	"path/filepath"
	"testing"
)

// TestDELNeedsOnlyItsRecord: a DEL works from its record, whatever the runtime
// has forgotten and whatever has disappeared since ADD.
func TestDELNeedsOnlyItsRecord(t *testing.T) {
	remove := func(w *world, path ...string) {
		w.t.Helper()
		if err := os.RemoveAll(w.file(path...)); err != nil {
			w.t.Fatal(err)
		}
	}
	for name, change := range map[string]func(w *world, p *pod){
		"namespace gone":           func(w *world, p *pod) { w.vanish(p) },
		"namespace not one":        func(_ *world, p *pod) { p.netns = "/dev/null" },
		"prevResult missing":       func(_ *world, p *pod) { p.result = nil },
		"prevResult of another":    func(_ *world, p *pod) { p.result = []byte(`{"cniVersion":"1.0.0","ips":[]}`) },
		"configuration changed":    func(w *world, p *pod) { p.conf["delegates"], p.conf["delegate"] = []object{w.fake("z")}, w.fake("z") },
		"configuration broken":     func(_ *world, p *pod) { p.conf["delegates"], p.conf["delegate"] = "none", 7 },
		"configuration removed":    func(_ *world, p *pod) { delete(p.conf, "delegates"); delete(p.conf, "delegate") },
		"annotation changed":       func(_ *world, p *pod) { p.annotations = map[string]string{annotation: "another"} },
		"network's file gone":      func(w *world, _ *pod) { remove(w, "net.d") },
		"subnet file gone":         func(w *world, _ *pod) { remove(w, "subnet.env") },
		"another protocol version": func(_ *world, p *pod) { p.conf["cniVersion"] = "0.4.0" },
	} {
		for _, s := range subjects() {
			t.Run(s.name+"/"+name, func(t *testing.T) {
				w := newWorld(t)
				second := w.name("second")
				w.network(second, w.with(w.fake("c"), object{"cniVersion": "1.0.0"}))
				p := w.pod(s.conf(w))
				want := s.calls("DEL")
				if s.name == "multinet" {
					p.annotations = map[string]string{annotation: second}
					want = append([]string{"DEL c net2"}, want...)
				}
				w.ok("ADD", p)
				w.forget()
				change(w, p)
				w.ok("DEL", p)
				w.trace(want...)
				w.nothingLeft()
				for range 2 {
					w.ok("DEL", p, withoutNetNS)
				}
				w.trace(want...)
				w.figures(s.name+": DEL, "+name, 1)
			})
		}
	}
}

// TestDELAndGCFailWhileAPluginIsMissing: while the plugin's executable is
// missing, DEL and GC fail with code 7, name it, and keep the record. Once it
// is back, the next DEL removes everything.
func TestDELAndGCFailWhileAPluginIsMissing(t *testing.T) {
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			w := newWorld(t)
			w.private("fake")
			p := w.pod(s.conf(w))
			w.ok("ADD", p)
			w.forget()
			gone := filepath.Join(w.bin, "fake")
			if err := os.Rename(gone, gone+".away"); err != nil {
				t.Fatal(err)
			}
			const tries = 5
			for range tries {
				w.fails(7, "DEL", p, []string{`plugin "fake": not found in`}, withoutNetNS)
				w.fails(7, "GC", p, []string{`plugin "fake": not found in`}, valid())
			}
			same(t, "attached", len(s.fakes), len(w.live()))
			same(t, "recorded", true, w.recorded(p, s.state))
			if err := os.Rename(gone+".away", gone); err != nil {
				t.Fatal(err)
			}
			w.ok("DEL", p, withoutNetNS)
			w.trace(s.calls("DEL")...)
			w.nothingLeft()
			w.figures(s.name+": DEL and GC without the plugin's executable", 2*tries)
		})
	}
}
