package main

import (
	"context"
	"errors"
	"testing"

	"github.com/metacni/metacni/scratch"
)

// What is begun is recorded before, and forgotten after it is undone.
func TestRemember(t *testing.T) {
	store := scratch.Store[string]{Dir: t.TempDir()}
	key := scratch.Key{Network: "n", ContainerID: "c1", IfName: "eth0"}
	state := func() scratch.State {
		r, _ := store.Get(key)
		return r.State
	}
	for want, fails := range map[scratch.State]error{scratch.Planned: errors.New("killed"), scratch.Added: nil} {
		l, err := store.Lock(t.Context(), key.ContainerID)
		if err != nil {
			t.Fatal(err)
		}
		if err := remember(store, l, key, func() error {
			if state() != scratch.Planned {
				t.Error("nothing is recorded before")
			}
			return fails
		}); !errors.Is(err, fails) || state() != want {
			t.Errorf("%v, recorded as %q", err, state())
		}
		err = store.Consume(t.Context(), l, key, func(context.Context, scratch.Record[string]) error { return nil })
		if err != nil || state() != "" || l.Unlock() != nil {
			t.Errorf("left as %q: %v", state(), err)
		}
	}
}
