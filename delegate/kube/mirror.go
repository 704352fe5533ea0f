package kube

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/metacni/metacni/delegate/kube/internal/queue"
	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/nadfile"
	"github.com/metacni/metacni/netconf/nad"
)

// A mirror copies the definitions of a store to a directory. It changes nothing before the
// store has synced, because until then the directory knows more. After an error, such as a
// full disk, it tries again and does not give up.
type mirror struct {
	dir    string
	log    *slog.Logger
	store  *store[known]
	queue  *queue.Queue[types.NamespacedName] // to be compared with the store
	failed map[types.NamespacedName]bool      // to be tried again
}

func newMirror(dir string, log *slog.Logger, store *store[known]) *mirror {
	m := &mirror{dir: dir, log: log, store: store, queue: queue.New[types.NamespacedName](), failed: map[types.NamespacedName]bool{}}
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
	m.sweep()
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
		m.log.ErrorContext(ctx, "definitions cannot be mirrored, trying again", "dir", m.dir, "error", err)
	case before > 0 && len(m.failed) == 0:
		m.log.InfoContext(ctx, "definitions are mirrored again", "dir", m.dir)
	}
}

// sweep queues the definitions that an earlier process has written, and removes its temporary
// files. Definitions without a .key file belong to a person. A directory that cannot be read
// is left alone.
func (m *mirror) sweep() {
	files, _ := fs.Glob(os.DirFS(m.dir), "*/*") // the pattern is valid
	for _, file := range files {
		namespace, base := path.Split(file)
		if durable.IsTemp(base) {
			_ = os.Remove(filepath.Join(m.dir, file)) // it harms nobody
		} else if name, ok := strings.CutSuffix(base, ".key"); ok {
			m.queue.Add(types.NamespacedName{Namespace: path.Clean(namespace), Name: name})
		}
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
		return m.remove(nad.Definition{Ref: nad.Ref(key)})
	}
	if have, err := nad.Load(os.DirFS(m.dir), k.definition.Ref); err == nil && have == k.definition {
		return nil
	}
	if nadfile.TooLong(key.Name) {
		m.log.Warn("definition cannot be mirrored: its name is too long for a file", "definition", key.String())
		return nil
	}
	dir, err := durable.MakeDir(filepath.Join(m.dir, key.Namespace), nil)
	if err != nil {
		return err
	}
	defer dir.Close()
	for _, f := range files(k.definition) {
		if f.Data == nil {
			err = ignoreMissing(dir.Remove(path.Base(f.Name)))
		} else {
			err = dir.WriteFile(path.Base(f.Name), f.Data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// emptyPause is the time between two looks at a definition that an empty list has removed.
const emptyPause = time.Minute

// remove removes a definition from the mirror. A loss of power may bring it back, until sweep.
func (m *mirror) remove(d nad.Definition) error {
	if d.Validate() != nil || nadfile.TooLong(d.Name) {
		return nil // the mirror has no files of that name
	}
	dir, err := durable.OpenDir(filepath.Join(m.dir, d.Namespace), nil)
	if err != nil {
		return ignoreMissing(err)
	}
	defer dir.Close()
	for _, f := range slices.Backward(files(d)) {
		if err := ignoreMissing(dir.Remove(path.Base(f.Name))); err != nil {
			return err
		}
	}
	_ = os.Remove(filepath.Join(m.dir, d.Namespace)) // unless others are in it
	return nil
}

// files returns the files of d, whose name is valid.
func files(d nad.Definition) []nadfile.File {
	return nadfile.Files(d.Namespace, d.Name, d.Config, nadfile.Key{UID: d.UID, Version: d.Version, Resource: d.Resource})
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
