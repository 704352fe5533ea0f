package lifecycle

import (
	"context"
	"slices"

	"github.com/metacni/metacni/scratch"
)

// A running ADD or Attach, which a DEL of the same key cancels.
type running struct{ cancel context.CancelCauseFunc }

// begin returns a context that a DEL of k cancels, and a function that ends it.
func (m *Manager) begin(ctx context.Context, k scratch.Key) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	a := &running{cancel}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.adds == nil {
		m.adds = make(map[scratch.Key][]*running)
	}
	m.adds[k] = append(m.adds[k], a)
	return ctx, func() {
		cancel(nil)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.adds[k] = slices.DeleteFunc(m.adds[k], func(b *running) bool { return b == a })
		if len(m.adds[k]) == 0 {
			delete(m.adds, k)
		}
	}
}

// supersede cancels the ADDs of k in this Manager, running and waiting.
func (m *Manager) supersede(k scratch.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.adds[k] {
		a.cancel(ErrSuperseded)
	}
}
