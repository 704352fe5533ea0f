package resident

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// A container without calls takes no memory.
func TestTurnsForgetContainers(t *testing.T) {
	t.Parallel()
	var all turns
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range 3 {
		id := fmt.Sprint("c", i)
		release, err := all.take(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := all.take(ended, id); !errors.Is(err, context.Canceled) {
			t.Errorf("waiting: %v", err)
		}
		if len(all.m) != 1 {
			t.Errorf("%d containers while one has its turn", len(all.m))
		}
		release()
	}
	if len(all.m) != 0 {
		t.Errorf("%d containers are left", len(all.m))
	}
}
