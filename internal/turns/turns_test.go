package turns

import (
	"context"
	"errors"
	"slices"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

func TestFirstComeFirstServed(t *testing.T) {
	t.Parallel()
	var all Turns[string]
	var seen []string
	visit := func(earlier string) { seen = append(seen, earlier) }
	ended, cancel := context.WithCancelCause(t.Context())
	why := errors.New("a DEL")
	cancel(why)

	a, b, c := all.LineUp("c1", "a", visit), all.LineUp("c1", "b", visit), all.LineUp("c1", "c", visit)
	if want := []string{"a", "a", "b"}; !slices.Equal(seen, want) {
		t.Errorf("visited %q, want %q", seen, want)
	}
	other := all.LineUp("c2", "d", func(string) { t.Error("a turn of another container was visited") })
	for _, turn := range []*Turn[string]{a, other} {
		nodetest.OK(t, turn.Wait(t.Context()))
	}
	for _, turn := range []*Turn[string]{b, c} {
		if err := turn.Wait(ended); !errors.Is(err, why) {
			t.Errorf("%s waited in vain: %v, want %v", turn.value, err, why)
		}
	}
	b.Leave() // before its turn
	nodetest.Is(t, c.Wait(ended), why)
	a.Leave()
	nodetest.OK(t, c.Wait(t.Context()))
	c.Leave()
	other.Leave()
	if n := len(all.lines); n != 0 {
		t.Errorf("%d containers are remembered", n)
	}
}
