package lifecycle

import (
	"context"
	"slices"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/scratch"
)

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
					return w.withFile(attachment(network(l.network, l.plugins...), o.key.ContainerID, l.ifname)), w.goesWrong(ctx, f)
				}})
			}
			return all, nil
		},
	})
	return err
}
