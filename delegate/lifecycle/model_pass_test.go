package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/nodetest"
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

// reconcile makes one change after the other, detaching first, and tries each once.
func (m *model) reconcile(o op) (all codes) {
	k := o.key
	stuck, failed := make(map[string]bool), make(map[int]bool)
	for {
		now, cs := m.added(k)
		if cs != nil {
			return append(all, cs...)
		}
		if !m.there(k, now.pieces) {
			return append(all, 7)
		}
		there := func(w op, l piece) bool {
			return !l.half && l.ifname == w.plan()[0].ifname && l.network == w.plan()[0].network
		}
		change := false
		for _, l := range slices.Backward(now.pieces) {
			keep := slices.ContainsFunc(o.wanted(), func(w op) bool { return there(w, l) })
			if change = (l.half || reconciledName(l.ifname)) && !keep && !stuck[l.ifname]; change {
				_, cs := m.drop(k, now, func(other piece) bool { return other.ifname == l.ifname })
				stuck[l.ifname] = cs != nil
				all = append(all, cs...)
				break
			}
		}
		if change {
			continue
		}
		missing := slices.IndexFunc(o.wanted(), func(w op) bool {
			return !failed[w.shape] && !slices.ContainsFunc(now.pieces, func(l piece) bool { return there(w, l) })
		})
		if missing < 0 {
			return all
		}
		w, before := o.wanted()[missing], m.undoError
		m.undoError = false
		cs = m.transaction(w, now.pieces, scratch.Partial, func() { m.note(k, now.state, now.pieces) })
		failed[w.shape] = cs != nil
		m.undoError = m.undoError || before
		all = append(all, cs...)
	}
}

func (w *world) reconcile(ctx context.Context, o op) error {
	_, err := w.m.Reconcile(ctx, o.key, Reconciliation{
		Prepare: w.prepare,
		Recorded: func(a delegate.Attached) (Wanted, bool) {
			return Wanted{Network: a.Network.Name(), IfName: a.IfName}, reconciledName(a.IfName)
		},
		Wanted: func(context.Context, Record) (all []Wanted, err error) {
			for _, s := range o.wanted() {
				l := s.plan()[0]
				all = append(all, Wanted{Network: l.network, IfName: l.ifname, Plan: func(ctx context.Context, taken []string) (delegate.Attachment, error) {
					w.mu.Lock()
					w.trace = append(w.trace, planTrace(taken))
					f := w.plot.at("plan")
					w.mu.Unlock()
					return w.withFile(attachment(nodetest.Network(l.network, l.plugins...), o.key.ContainerID, l.ifname)), w.goesWrong(ctx, f)
				}})
			}
			return all, nil
		},
	})
	return err
}
