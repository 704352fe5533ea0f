package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestRecordsNeverPileUp: the last network of many pods has a mistake in its
// IPAM, and the runtime neither repeats DEL nor calls GC. Once the mistake is
// corrected, everything is removed without any command.
func TestRecordsNeverPileUp(t *testing.T) {
	pods := 10 // that have the mistake
	if *long {
		pods = 100
	}
	for _, by := range []struct {
		name  string
		conf  func(w *world) object // configuration of the pods
		watch func(w *world)        // starts the sweeper
	}{
		{"multinetd", func(w *world) object { return w.thick("1.0.0", w.bridge(0)) }, func(w *world) {
			w.daemon(daemonConf{keys: object{"sweepInterval": "50ms"}})
		}},
		{"install --watch", func(w *world) object { return w.multinet("1.0.0", w.bridge(0)) }, func(w *world) {
			for _, dir := range []string{"cni", "cache"} {
				if err := os.MkdirAll(w.file(dir), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			w.write(w.chain(0, w.bridge(0)), "cni", "10-primary.conflist")
			w.write(object{"confDir": w.file("net.d")}, "more.json")
			cmd := exec.CommandContext(t.Context(), built("multinet"), "install", "--watch", "--sweep-interval", "50ms",
				"--conf-dir", w.file("cni"), "--bin-dir", w.bin, "--cni-dir", w.file("state"), "--config", w.file("more.json"),
				"--cache-dir", w.file("cache"), "--multus-dir", "")
			cmd.Env = []string{"PATH=" + w.path}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			w.t.Cleanup(func() {
				_ = cmd.Process.Signal(syscall.SIGTERM)
				_ = cmd.Wait()
			})
		}},
	} {
		t.Run(by.name, func(t *testing.T) {
			w := newWorld(t)
			broken := w.bridge(1)
			broken["cniVersion"] = "1.0.0"
			ipam := broken["ipam"].(object)
			ipam["type"] = "host-locl"
			w.network("last", broken)
			conf := by.conf(w)
			by.watch(w)
			for range pods {
				p := w.pod(conf)
				p.annotations = map[string]string{"k8s.v1.cni.cncf.io/networks": "last"}
				if a := w.call("ADD", p); a.code == 0 || !strings.Contains(fmt.Sprint(a.err), "host-locl") {
					t.Fatalf("ADD: %s", a.stdout)
				}
				_ = w.call("DEL", p) // fails, or finds that a sweep has started
				w.vanish(p)
			}
			if got := len(w.state()); got == 0 {
				t.Fatal("nothing is left: there is nothing to show")
			}
			ipam["type"] = "host-local"
			w.network("last", broken)
			w.until("nothing is left", func() bool { return len(w.state()) == 0 })
			w.nothingLeft()
		})
	}
}
