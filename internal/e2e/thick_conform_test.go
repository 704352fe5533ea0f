package e2e

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// TestThickConform: the built shim and daemon do what the specification wants of
// a plugin that delegates.
func TestThickConform(t *testing.T) {
	w := newWorld(t)
	w.daemon(daemonConf{keys: object{"cniDir": nil}}) // which would go before that of a request
	conform(t, delegatetest.Binary{Path: built(t, "multinet-shim")}, delegatetest.Config{
		Stdin: func(dir string) string {
			return fmt.Sprintf(`{"type":"multinet-shim","daemonSocketDir":%q,"delQueueDir":%q,
				"cniDir":%q,"confDir":%[3]q,"binDir":%q,"delegates":[
				{"type":"bridge"}, {"name":"storage","plugins":[{"type":"macvlan"},{"type":"tuning"}]}
			]}`, w.file("d"), w.file("queue"), filepath.Join(dir, "state"), filepath.Join(dir, "no", "bin"))
		},
		Delegates: []string{"bridge", "macvlan", "tuning"},
		Skip: map[string]string{
			"environment": "a daemon hands on PATH and the trace alone (S28)",
			"stderr":      "what plugins write there is in the daemon's log",
		},
	})
	w.noTrace()
}
