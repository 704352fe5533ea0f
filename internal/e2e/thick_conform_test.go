package e2e

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// TestShimAndDaemonConform: the built shim and daemon behave as the
// specification demands of a plugin that delegates.
func TestShimAndDaemonConform(t *testing.T) {
	w := newWorld(t)
	w.daemon(daemonConf{keys: object{"cniDir": nil}}) // or it would override that of a request
	conform(t, delegatetest.Binary{Path: built("multinet-shim")}, delegatetest.Config{
		Stdin: func(dir string) string {
			return fmt.Sprintf(`{"type":"multinet-shim","daemonSocketDir":%q,"delQueueDir":%q,
				"cniDir":%q,"confDir":%[3]q,"binDir":%q,"delegates":[
				{"type":"bridge"}, {"name":"storage","plugins":[{"type":"macvlan"},{"type":"tuning"}]}
			]}`, w.file("d"), w.file("queue"), filepath.Join(dir, "state"), filepath.Join(dir, "no", "bin"))
		},
		Delegates: []string{"bridge", "macvlan", "tuning"},
		Skip: map[string]string{
			"environment": "a daemon passes plugins only PATH and the trace context",
			"stderr":      "the daemon logs the plugins' stderr",
		},
	})
	w.noTrace()
}
