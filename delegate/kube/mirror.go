package kube

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/metacni/metacni/delegate/kube/internal/queue"
	"github.com/metacni/metacni/netconf/nad"
)

// A mirror copies the definitions of a store to a directory. It changes nothing before the
// store has synced, because until then the directory knows more. After an error, such as a
// full disk, it tries again and does not give up.
type mirror struct {
	files  nad.Mirror
	log    *slog.Logger
	store  *store[known]
	queue  *queue.Queue[types.NamespacedName] // to be compared with the store
	failed map[types.NamespacedName]bool      // to be tried again
}

func newMirror(dir string, log *slog.Logger, store *store[known]) *mirror {
	m := &mirror{files: nad.Mirror{Dir: dir}, log: log, store: store, queue: queue.New[types.NamespacedName](), failed: map[types.NamespacedName]bool{}}
	store.follow(m.queue.Add)
	return m
}

// run keeps the mirror until ctx ends.
func (m *mirror) run(ctx context.Context) {
	defer m.queue.ShutDown()
	defer context.AfterFunc(ctx, m.queue.ShutDown)()
	if !m.store.awaitSync(ctx) {
		return
	}
	for _, r := range m.files.Refs() { // an earlier process has written them
		m.queue.Add(types.NamespacedName(r))
	}
	m.queue.Run(1, func(key types.NamespacedName) {
		if ctx.Err() == nil {
			m.note(ctx, key, m.copy(key))
		}
	})
}

// note has a definition that could not be copied tried again. The log says that there are such,
// and that there are none any more.
func (m *mirror) note(ctx context.Context, key types.NamespacedName, err error) {
	before := len(m.failed)
	if err != nil {
		m.failed[key] = true
		m.queue.Retry(key, false, 0)
	} else {
		delete(m.failed, key)
		m.queue.Forget(key)
	}
	switch {
	case before == 0 && err != nil:
		m.log.ErrorContext(ctx, "definitions cannot be mirrored, trying again", "dir", m.files.Dir, "error", err)
	case before > 0 && len(m.failed) == 0:
		m.log.InfoContext(ctx, "definitions are mirrored again", "dir", m.files.Dir)
	}
}

// copy copies a definition from the store to the directory. It removes one that is gone from the
// store, or cannot be used.
func (m *mirror) copy(key types.NamespacedName) error {
	k, found := m.store.get(key)
	if !found && !m.store.gone(key) {
		m.queue.AddAfter(key, emptyPause)
		return nil
	}
	if !found || k.err != nil {
		return m.files.Remove(nad.Ref(key))
	}
	err := m.files.Put(k.definition)
	if errors.Is(err, nad.ErrLongName) {
		m.log.Warn("definition cannot be mirrored: its name is too long for a file", "definition", key.String())
		return nil
	}
	return err
}

// emptyPause is the time between two looks at a definition that an empty list has removed.
const emptyPause = time.Minute
