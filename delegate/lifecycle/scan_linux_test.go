package lifecycle

import (
	"testing"
)

// A proc file system without the first process does not show all processes.
func TestScanOfNoProcessesProvesNothing(t *testing.T) {
	t.Parallel()
	for _, proc := range []string{t.TempDir(), "/no-such-directory"} {
		s := &scanner{proc: proc}
		if s.look(true); s.unseen == "" {
			t.Errorf("%s: everything is seen", proc)
		}
	}
}
