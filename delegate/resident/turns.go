package resident

import (
	"context"
	"sync"

	"github.com/metacni/metacni/internal/cause"
)

// turns serializes the calls of each container.
type turns struct {
	mu sync.Mutex // protects m
	m  map[string]*turn
}

type turn struct {
	free  chan struct{} // holds a value while nobody has the turn
	users int           // who have the turn or wait for it; protected by turns.mu
}

// take waits for the turn of a container, or for the end of ctx.
func (t *turns) take(ctx context.Context, id string) (release func(), err error) {
	t.mu.Lock()
	if t.m == nil {
		t.m = make(map[string]*turn)
	}
	its := t.m[id]
	if its == nil {
		its = &turn{free: make(chan struct{}, 1)}
		its.free <- struct{}{}
		t.m[id] = its
	}
	its.users++
	t.mu.Unlock()
	select {
	case <-its.free:
		return func() {
			its.free <- struct{}{}
			t.drop(id, its)
		}, nil
	case <-ctx.Done():
		t.drop(id, its)
		return nil, cause.Of(ctx)
	}
}

func (t *turns) drop(id string, its *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if its.users--; its.users == 0 {
		delete(t.m, id)
	}
}
