package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// GC removes the attachments of network that are recorded and not valid, and
// then tells the plugins which of their attachments remain.
//
// valid is the runtime's list of (container, interface) pairs. Nil is no list:
// GC fails with [ErrNoList] and removes nothing. Stale attachments are removed
// as Del does it, from their own records; records that were made or changed
// since GC started are kept.
//
// Each network of nets, the current configuration, and of the records of
// network that are kept receives GC once, with its own attachments of all
// records in Dir, those of other networks' records included: they are not ours
// to judge. A recorded network is one of nets if it has the same name and the
// same types of plugins.
//
// Everything is tried; all failures, each an [*Error], are joined in the
// error. Damaged records are among them, as [scratch.ErrCorrupt], until they
// are forgotten, see [scratch.Store.Forget]. While one of them may be of a
// valid attachment, nobody knows what that consists of, and no plugin is told
// anything: it would take what it is not told for garbage.
func (m *Manager) GC(ctx context.Context, network string, valid []types.GCAttachment, nets []netconf.Network) error {
	g := &garbage{network: network, start: time.Now(), valid: make(map[types.GCAttachment]bool), failed: make(map[scratch.Key]bool)}
	if err := utils.ValidateNetworkName(network); err != nil {
		return g.fail(err)
	}
	if valid == nil {
		return g.fail(ErrNoList)
	}
	for _, a := range valid {
		g.valid[a] = true
	}
	err := m.collect(ctx, g)
	if ctx.Err() != nil {
		return errors.Join(err, g.fail(ended(ctx)))
	}
	return errors.Join(err, m.tell(ctx, g, nets))
}

// garbage is one GC.
type garbage struct {
	network string
	start   time.Time
	valid   map[types.GCAttachment]bool // the runtime's list
	failed  map[scratch.Key]bool        // stale ones whose DEL has failed
}

func (g *garbage) fail(err error) error { return fail("GC", scratch.Key{Network: g.network}, err) }

// stale reports whether the record of k, last written at updated, is to go.
func (g *garbage) stale(k scratch.Key, updated time.Time) bool {
	return k.Network == g.network && !updated.After(g.start) &&
		!g.valid[types.GCAttachment{ContainerID: k.ContainerID, IfName: k.IfName}]
}

// collect removes what is stale. Records that cannot be read are not its
// business, see tell.
func (m *Manager) collect(ctx context.Context, g *garbage) error {
	var stale []scratch.Key
	for r, err := range (scratch.Store[struct{}]{Dir: m.Dir}).List(ctx) { // what they consist of does not matter yet
		if err == nil && g.stale(r.Key, r.Updated) {
			stale = append(stale, r.Key)
		}
	}
	var errs []error
	for _, k := range stale {
		if ctx.Err() != nil {
			break
		}
		err := m.locked(ctx, k.ContainerID, func(ctx context.Context, l *scratch.Lock) error {
			r, err := m.store().Get(k)
			if errors.Is(err, fs.ErrNotExist) || err == nil && !g.stale(k, r.Updated) {
				return nil // somebody was faster, or has made it anew
			}
			err = m.remove(ctx, l, k, "")
			g.failed[k] = err != nil
			return err
		})
		errs = append(errs, fail("GC", k, err))
	}
	return errors.Join(errs...)
}

// tell forwards GC to each network once.
func (m *Manager) tell(ctx context.Context, g *garbage, nets []netconf.Network) error {
	var errs []error
	var to networks
	for _, n := range nets {
		to.add(n)
	}
	left := make(map[string][]types.GCAttachment) // by the delegates' network names
	known := true
	for r, err := range m.store().List(ctx) {
		if err != nil {
			errs = append(errs, g.fail(err))
			// A long container ID is known by its hash only.
			known = known && errors.Is(err, scratch.ErrCorrupt) && !strings.HasPrefix(r.Key.ContainerID, "#") && g.stale(r.Key, r.Updated)
			continue
		}
		if g.failed[r.Key] && r.State == scratch.Deleting {
			continue // a plugin's GC may do what its DEL did not
		}
		for _, e := range r.Value.Delegates {
			name := e.Network.Name()
			left[name] = append(left[name], types.GCAttachment{ContainerID: r.Key.ContainerID, IfName: e.IfName})
			if r.Key.Network == g.network {
				to.addRecorded(e.Network)
			}
		}
	}
	if !known {
		return errors.Join(append(errs, g.fail(errors.New("no plugin was told what is valid, because not all of it is known")))...)
	}
	for _, n := range to.all {
		as := left[n.Name()]
		sort.Sort(attachments(as))
		if err := m.invoker().GC(ctx, n, as); err != nil {
			errs = append(errs, g.fail(err))
		}
	}
	return errors.Join(errs...)
}

// attachments are sorted with package sort, which thin programs have already:
// what slices.SortFunc becomes for them is twice as much as all else here.
type attachments []types.GCAttachment

func (as attachments) Len() int      { return len(as) }
func (as attachments) Swap(i, j int) { as[i], as[j] = as[j], as[i] }
func (as attachments) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(as[i].ContainerID, as[j].ContainerID), cmp.Compare(as[i].IfName, as[j].IfName)) < 0
}

// networks are those to be told.
type networks struct {
	all  []netconf.Network
	kind map[string]bool
}

// add adds a network of the current configuration. Several of one name and
// kind may differ in what their plugins do.
func (ns *networks) add(n netconf.Network) {
	if slices.ContainsFunc(ns.all, n.Equal) {
		return
	}
	if ns.kind == nil {
		ns.kind = make(map[string]bool)
	}
	ns.all = append(ns.all, n)
	ns.kind[kind(n)] = true
}

// addRecorded adds the network of a record, unless it is one of those, or was
// when it was recorded: records may differ for each container.
func (ns *networks) addRecorded(n netconf.Network) {
	if !ns.kind[kind(n)] {
		ns.add(n)
	}
}

func kind(n netconf.Network) string {
	words := []string{n.Name()}
	for _, p := range n.Plugins() {
		words = append(words, p.Type())
	}
	return fmt.Sprintf("%q", words)
}
