package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// TestNotReadyOnABadDisk: STATUS is 50, and a daemon is not ready, while no ADD could
// be recorded.
func TestNotReadyOnABadDisk(t *testing.T) {
	for _, d := range disks {
		t.Run(d.name, func(t *testing.T) {
			w := newWorld(t)
			dir := w.mount(d)
			thin, thick := w.pod(w.multinet("1.1.0", w.fake("a"))), w.pod(w.thick("1.1.0", w.fake("a")))
			w.daemon(daemonConf{})
			for range 2 {
				w.ok("STATUS", thin)
				w.ok("STATUS", thick)
				d.spoil(w, dir)
				w.fails(50, "STATUS", thin, []string{w.file("state")})
				w.fails(50, "STATUS", thick, []string{w.file("state")})
				r, err := w.ask(http.MethodGet, wire.PathReady, nil)
				if err != nil || r.status != http.StatusServiceUnavailable || !strings.Contains(string(r.body), w.file("state")) {
					t.Errorf("%d %s, %v", r.status, r.body, err)
				}
				d.mend(w, dir)
			}
			w.ok("ADD", thin)
			w.ok("DEL", thin)
			w.nothingLeft()
		})
	}
}
