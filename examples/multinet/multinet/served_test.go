package multinet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metacni/metacni/status"
)

// A type that a delegate of the daemon has served is not run by an executable,
// neither by the plugin that works on the same records nor for a DEL; all others
// are, and it is again when the daemon's note is removed.
func TestNothingIsRunInTheSteadOfADelegate(t *testing.T) {
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
	if err := os.Remove(note); err != nil {
		t.Fatal(err)
	}
	h.mustRun(t, "DEL", two)
	if got := h.trace(); len(got) != 1 || got[0] != "DEL macvlan net1" {
		t.Errorf("%q", got)
	}
}
