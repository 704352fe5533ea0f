package turns

import (
	"context"
	"errors"
	"slices"
	"testing"
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
		if err := turn.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for _, turn := range []*Turn[string]{b, c} {
		if err := turn.Wait(ended); !errors.Is(err, why) {
			t.Errorf("%s waited in vain: %v, want %v", turn.value, err, why)
		}
	}
	b.Leave() // before its turn
	if err := c.Wait(ended); !errors.Is(err, why) {
		t.Errorf("c has its turn beside a: %v", err)
	}
	a.Leave()
	if err := c.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	c.Leave()
	other.Leave()
	if n := len(all.lines); n != 0 {
		t.Errorf("%d containers are remembered", n)
	}
}
