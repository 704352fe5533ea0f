package multinet

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
)

// A FIFO in confDir does not make a command hang, and does not hide networks in
// other files.
func TestFIFOAmongConfigurations(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	fifo := filepath.Join(h.dir, "net.d", "00-fifo.conf")
	nodetest.OK(t, syscall.Mkfifo(fifo, 0o600))
	for _, command := range []string{"ADD", "STATUS"} {
		for conf, says := range map[string]string{
			fmt.Sprintf(`"clusterNetwork":%q`, fifo):                  "clusterNetwork",
			keys(bridge, fmt.Sprintf(`"defaultNetworks":[%q]`, fifo)): "defaultNetworks",
		} {
			wantError(t, h.run(t, command, conf), 7, says, fifo, "not a regular file")
		}
	}
	wantTrace(t, h)
	h.mustRun(t, "ADD", keys(bridge, annotated("fast")))
	wantTrace(t, h, "ADD bridge eth0", "ADD macvlan net1")
	h.mustRun(t, "DEL", bridge)
	h.clean(t)
}
