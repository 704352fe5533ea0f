package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// GC removes the attachments of network that are recorded and not valid, and
// then tells the plugins which of their attachments remain.
//
// valid is the runtime's list of (container, interface) pairs. Nil is no list:
// GC fails with [ErrNoList] and removes nothing. Stale attachments are removed
// as Del does it, from their own records; records that are newer than the
// start of GC are kept.
//
// Each network of nets, the current configuration, and of the records that are
// kept receives GC once, with its own attachments of all records in Dir, those
// of other networks' records included: they are not ours to judge.
//
// Everything is tried; all failures are joined in the error, damaged records
// ([scratch.ErrCorrupt]) among them.
func (m *Manager) GC(ctx context.Context, network string, valid []types.GCAttachment, nets []netconf.Network) error {
	if valid == nil {
		return fail("GC", scratch.Key{Network: network}, ErrNoList)
	}
	start := time.Now()
	isValid := make(map[types.GCAttachment]bool, len(valid))
	for _, a := range valid {
		isValid[a] = true
	}
	g := garbage{nets: slices.Clone(nets), left: make(map[string][]types.GCAttachment)}
	var errs []error
	for r, err := range m.store().List() {
		switch k := r.Key; {
		case err != nil:
			errs = append(errs, err)
		case k.Network != network:
			g.keep(r, false)
		case isValid[types.GCAttachment{ContainerID: k.ContainerID, IfName: k.IfName}] || r.Created.After(start):
			g.keep(r, true)
		default:
			errs = append(errs, m.collect(ctx, r, start, &g))
		}
	}
	return errors.Join(append(errs, m.tell(ctx, &g))...)
}

// collect removes the stale r, unless it was made anew in the meantime.
func (m *Manager) collect(ctx context.Context, r scratch.Record[record], start time.Time, g *garbage) error {
	errNew := errors.New("newer than the start of GC")
	err := m.locked(ctx, r.Key.ContainerID, func(ctx context.Context, l *scratch.Lock) error {
		return m.removeIf(ctx, l, r.Key, "", func(now scratch.Record[record]) error {
			if now.Created.After(start) {
				g.keep(now, true)
				return errNew
			}
			return nil
		})
	})
	if errors.Is(err, errNew) {
		return nil
	}
	return fail("GC", r.Key, err)
}

// tell forwards GC to each network once.
func (m *Manager) tell(ctx context.Context, g *garbage) error {
	var errs []error
	told := make(map[string]bool)
	for _, n := range g.nets {
		if told[n.Name()] {
			continue
		}
		told[n.Name()] = true
		left := g.left[n.Name()]
		slices.SortFunc(left, func(a, b types.GCAttachment) int {
			return cmp.Or(cmp.Compare(a.ContainerID, b.ContainerID), cmp.Compare(a.IfName, b.IfName))
		})
		errs = append(errs, m.invoker().GC(ctx, n, left))
	}
	return errors.Join(errs...)
}

// garbage is what GC finds out on its way.
type garbage struct {
	nets []netconf.Network               // to be told, the first of a name counts
	left map[string][]types.GCAttachment // what remains, by the delegates' network names
}

// keep notes that the attachments of r remain; with tell, that its networks
// are to hear of it.
func (g *garbage) keep(r scratch.Record[record], tell bool) {
	for _, e := range r.Value.Delegates {
		name := e.Network.Name()
		g.left[name] = append(g.left[name], types.GCAttachment{ContainerID: r.Key.ContainerID, IfName: e.IfName})
		if tell && !slices.ContainsFunc(g.nets, func(n netconf.Network) bool { return n.Name() == name }) {
			g.nets = append(g.nets, e.Network)
		}
	}
}
