package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/metacni/metacni/scratch"
)

// sweep is what a Sweeper does about one attachment.
func (w *world) sweep(ctx context.Context, k scratch.Key) error {
	_, err := (&Sweeper{Manager: w.m}).remove(ctx, k, errand{})
	return err
}

func (m *model) sweep(k scratch.Key) codes {
	r, cs := m.recorded(k)
	if r == nil {
		return cs
	}
	now := r.now()
	there := m.there(k, now.pieces)
	switch {
	case now.state == scratch.Added && there:
		return nil
	case now.state == scratch.Partial && there:
		_, cs := m.drop(k, now, func(l piece) bool { return l.half })
		return cs
	}
	cs, _ = m.remove(k)
	return cs
}

// namespace is the path of a container's network namespace, as it were: a file.
func (w *world) namespace(container string) string { return filepath.Join(w.dir+"-ns", container) }

// makeNamespace makes another one at the path. What was there is kept, so that
// no other has its inode.
func (w *world) makeNamespace(container string) error {
	path := w.namespace(container)
	w.namespaces++
	if err := os.Rename(path, fmt.Sprint(path, "-", w.namespaces)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.WriteFile(path, nil, 0o600)
}
