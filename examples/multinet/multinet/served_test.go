package multinet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/status"
)

// No executable is run for the type of a resident plugin of the daemon, not even for
// DEL, until the daemon's note is removed. Other types are run.
func TestNoExecutableRunsInPlaceOfAResidentPlugin(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	const two = `"delegates":[{"type":"bridge"},{"name":"fast","type":"macvlan"}]`
	h.mustRun(t, "ADD", two)
	h.trace()
	h.write(t, "state.relay/macvlan", `{"index":"10","name":"vlans","source":"external"}`)
	note := filepath.Join(ResidentState(h.state()), "macvlan")
	for _, command := range []string{"CHECK", "DEL", "ADD"} {
		err := h.run(t, command, two)
		if status.Code(err) != 11 || !strings.Contains(err.Error(), "remove "+note) {
			t.Errorf("%s: code %d: %v", command, status.Code(err), err)
		}
	}
	for _, call := range h.trace() {
		if strings.Contains(call, "macvlan") {
			t.Errorf("run: %s", call)
		}
	}
	nodetest.OK(t, os.Remove(note))
	h.mustRun(t, "DEL", two)
	if got := h.trace(); len(got) != 1 || got[0] != "DEL macvlan net1" {
		t.Errorf("%q", got)
	}
}
