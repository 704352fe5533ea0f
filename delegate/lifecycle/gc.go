package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/internal/flock"
	"github.com/metacni/metacni/internal/records"
	"github.com/metacni/metacni/internal/terse"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// A GCRequest says what GC removes and which networks it informs.
type GCRequest struct {
	// Network is the name of our network, as in the keys of records.
	Network string

	// Valid is the runtime's list of valid attachments to Network. Nil means
	// that there is no list.
	Valid []types.GCAttachment

	// Networks are those of the current configuration. The first is the network
	// of the interface that the runtime asks for.
	Networks []netconf.Network

	// Shared, if not nil, returns why others than the users of Dir may have attachments to the
	// network of this name, or "". Its plugins are not told which attachments are valid then:
	// they would remove those of the others.
	Shared func(name string) (why string)
}

// GC removes the attachments of c.Network that are recorded and not valid. Then
// it runs the GC of the delegated plugins with the attachments that remain.
//
// Without a list of valid attachments GC fails with code 7 and removes
// nothing. It removes stale attachments as Del does. It keeps records that were
// made or changed since it started.
//
// Then each network of c.Networks receives GC once, and so does each network in
// the remaining records of c.Network. A recorded network is one of c.Networks if
// it has the same name and the same types of plugins. A network receives these
// attachments as valid:
//
//   - its attachments in all records in Dir, also in those of other networks than
//     c.Network
//   - the attachments in c.Valid without a record, such as those made before
//     records were kept
//
// Nobody knows which further networks the container of an attachment without a record
// is attached to. While there is one, only the network of the interface that the
// runtime asks for receives GC: the first of c.Networks, or that of a record's own
// interface. The error, of code 11, names the networks that received none and the
// containers.
//
// A network with disableGC is left alone (SPEC section 1): GC keeps its attachments
// in stale records too, for Del or a [Sweeper] to remove.
//
// No attachment is recorded while the plugins run, also if they outlive this process. A plugin
// that takes longer than a second is ended when an ADD waits for it; the next GC runs it again.
// An operation that waits for them longer than LockTimeout kills them then.
//
// GC goes on past failures and joins the errors; each is an [*Error]. A record
// that cannot be read is an error each time, [scratch.ErrCorrupt] or
// [scratch.ErrVersion], until it is removed; see [scratch.Store.Forget]. If such
// a record may be of a valid attachment, no plugin receives GC: it would remove
// that attachment.
func (m *Manager) GC(ctx context.Context, c GCRequest) error {
	g := &garbage{
		network: c.Network, current: c.Networks, o: m.observe(), names: make(map[string]bool), valid: make(map[types.GCAttachment]bool), failed: make(map[scratch.Key]bool),
		disabled: make(map[string]bool), further: make(map[string]bool),
	}
	if err := utils.ValidateNetworkName(c.Network); err != nil {
		return g.fail(err)
	}
	if c.Valid == nil {
		return g.fail(errNoList)
	}
	for _, a := range c.Valid {
		g.valid[a] = true
	}
	for _, n := range c.Networks {
		g.disabled[n.Name()] = g.disabled[n.Name()] || n.DisableGC()
		g.further[n.Name()] = g.further[n.Name()] || !sameKind(n, c.Networks[0])
	}
	return errors.Join(m.collect(ctx, g), m.tell(ctx, g, c))
}

// garbage is one GC.
type garbage struct {
	network string
	current []netconf.Network // of the present configuration
	o       *observer
	names   map[string]bool             // whether a network is certainly not configured any more
	valid   map[types.GCAttachment]bool // the runtime's list
	failed  map[scratch.Key]bool        // stale ones whose DEL has failed

	// Names of networks in the current configuration.
	disabled map[string]bool // those with disableGC
	further  map[string]bool // those of other interfaces than the one that the runtime asks for
}

func (g *garbage) fail(err error) error { return fail(opGC, scratch.Key{Network: g.network}, err) }

// ours reports whether r is of our network, by the name that it has or had before. The runtime's list
// says nothing about other networks. One that is not configured any more was renamed, and not removed,
// if ours is the only one of our plugin, and attaches the runtime's interface to the same network.
func (m *Manager) ours(g *garbage, r scratch.Record[record]) bool {
	if r.Key.Network == g.network {
		return true
	}
	renamed := m.Type != "" && r.Value.Type == m.Type && m.renamed(g, r.Key.Network)
	return renamed && (m.OnlyNetwork != nil && m.OnlyNetwork(g.network) && g.attachesAs(r) || g.o.judge(r.Value.Delegates).Life == Dead)
}

// attachesAs reports whether our network attaches the runtime's interface to the network that r has.
// A network without a name of its own has ours.
func (g *garbage) attachesAs(r scratch.Record[record]) bool {
	return len(g.current) > 0 && slices.ContainsFunc(r.Value.Delegates, func(e entry) bool {
		was, is := e.Network, g.current[0]
		sameName := was.Name() == is.Name() || was.Name() == r.Key.Network && is.Name() == g.network
		return e.IfName == r.Key.IfName && sameName && sameTypes(was, is)
	})
}

// renamed reports whether a network is certainly not configured any more.
func (m *Manager) renamed(g *garbage, name string) bool {
	is, known := g.names[name]
	if !known {
		configured, certain := m.configured(g.network, name)
		is = certain && !configured
		g.names[name] = is
	}
	return is
}

// stale reports whether the record of k is to be removed, if it is ours.
func (g *garbage) stale(k scratch.Key) bool {
	return !g.valid[types.GCAttachment{ContainerID: k.ContainerID, IfName: k.IfName}]
}

// collectable reports whether GC may remove e.
func (g *garbage) collectable(e entry) bool {
	return !e.Network.DisableGC() && !g.disabled[e.Network.Name()]
}

// collect removes what is stale. It skips records that cannot be read; tell
// reports them.
func (m *Manager) collect(ctx context.Context, g *garbage) error {
	m.tidy(func(id string) (*scratch.Lock, error) { return m.lockWithin(ctx, time.Nanosecond, id) })
	var stale []scratch.Key
	seen := make(map[scratch.Key]scratch.Record[record])
	for r, err := range m.store().ListChanged(ctx, func(k scratch.Key, _ string) bool { return !m.maybeStale(g, k) }) {
		if err == nil && m.ours(g, r) && g.stale(r.Key) {
			stale = append(stale, r.Key)
			seen[r.Key] = r
		}
	}
	var errs []error
	for _, k := range stale {
		if ctx.Err() != nil {
			break
		}
		err := m.locked(ctx, opGC, k, func(ctx context.Context, l *scratch.Lock) error {
			r, err := m.store().Get(k)
			switch {
			case err != nil:
				return except(err, notThere)
			case !r.Created.Equal(seen[k].Created), r.State.Attached() && !r.Updated.Equal(seen[k].Updated):
				return nil // it was made again, or changed by an operation after which it is attached
			case slices.IndexFunc(r.Value.Delegates, func(e entry) bool { return !g.collectable(e) }) >= 0:
				err = m.drop(ctx, l, &r, errand{which: g.collectable})
			default:
				_, err = m.remove(ctx, l, k, errand{})
			}
			g.failed[k] = err != nil
			if errors.As(err, new(*givenUpError)) && r.State == scratch.Leftover {
				m.debug(ctx, "leftover stays", slog.String("container", k.ContainerID), slog.Any("err", err))
				return nil // nothing was ever attached, and sweeps try again
			}
			return err
		})
		errs = append(errs, fail(opGC, k, err))
	}
	return errors.Join(errs...)
}

// maybeStale reports whether the record of k may be stale. k is as the name of the file has it: on
// most nodes no record has to be read to know that none is.
func (m *Manager) maybeStale(g *garbage, k scratch.Key) bool {
	return (k.Network == records.Part(g.network) || m.Type != "" && m.renamed(g, k.Network)) && g.stale(k)
}

// tell runs the GC of each network once. No attachment is recorded meanwhile. But
// ADDs that wait get a turn after a second: between two networks, or in place of a
// plugin that takes longer.
func (m *Manager) tell(ctx context.Context, g *garbage, c GCRequest) error {
	l, err := m.lockDir(ctx, true)
	if err != nil {
		return g.fail(err)
	}
	defer func() {
		if l != nil {
			unlockDir(l)
		}
	}()
	since := time.Now()
	left, err := m.left(ctx, g)
	errs := []error{err}
	all := left.told(c.Networks)
	if untold := slices.DeleteFunc(slices.Clone(all), left.knows); left.known && len(untold) > 0 {
		errs = append(errs, g.fail(left.unknown(untold)))
	}
	for _, n := range all {
		if left.known && time.Since(since) >= m.gcTurn() {
			if l, err = m.letIn(ctx, l); err != nil {
				return errors.Join(append(errs, g.fail(err))...)
			}
			since = time.Now()
			left, _ = m.left(ctx, g) // its errors are in errs already
		}
		if !left.known {
			return errors.Join(append(errs, g.fail(errors.New("plugins were not told which attachments are valid, because not all records can be read")))...)
		}
		if !left.knows(n) || c.Shared != nil && c.Shared(n.Name()) != "" {
			continue
		}
		if err := m.tellOne(ctx, l, n, left.of(n)); err != nil {
			errs = append(errs, g.fail(err))
		}
	}
	return errors.Join(errs...)
}

// tellOne runs the GC of n. The plugins inherit the lock l: while one that outlives
// this process works, nothing is recorded that it does not know to be valid.
func (m *Manager) tellOne(ctx context.Context, l *dirLock, n netconf.Network, valid []types.GCAttachment) error {
	file := l.File()
	return handing(ctx, file, func(ctx context.Context) error {
		// Together with the time it takes to end a plugin, this is less than an
		// ADD waits.
		ctx, end := context.WithCancelCause(ctx)
		ctx, cancel := context.WithTimeout(ctx, m.lockTimeout()/2)
		var watch sync.WaitGroup
		defer watch.Wait()
		defer cancel()
		defer end(nil)
		since := time.Now()
		awaited := func() (bool, error) { return time.Since(since) >= m.gcTurn() && flock.Awaited(file), nil }
		watch.Go(func() {
			if flock.Wait(ctx, 0, awaited) == nil {
				end(errAwaited)
			}
		})
		return m.invoker().GC(ctx, n, valid)
	})
}

// errAwaited is why the GC of a plugin ends.
var errAwaited = fault.New(types.ErrTryAgainLater, "ended after a second, because an ADD waited: the next GC runs it again")

// gcTurn is how long plugins of a GC may run while somebody waits to record an attachment.
func (m *Manager) gcTurn() time.Duration { return min(time.Second, m.lockTimeout()/4) }

// letIn releases the directory's lock, for those who wait to record an attachment,
// and takes it again.
func (m *Manager) letIn(ctx context.Context, l *dirLock) (*dirLock, error) {
	unlockDir(l)
	select {
	case <-time.After(turn):
	case <-ctx.Done():
	}
	return m.lockDir(ctx, true)
}

// turn is how long the directory's lock stays free for others: twice as long as
// they wait between two tries.
const turn = 50 * time.Millisecond

// remaining is what all records hold after the stale attachments were removed.
type remaining struct {
	known      bool                            // every record of a valid attachment could be read
	attached   map[string][]types.GCAttachment // by the delegates' network names
	unrecorded map[types.GCAttachment]bool     // valid ones without a record
	foreign    map[types.GCAttachment]bool     // those of unrecorded whose container nobody knows
	further    map[string]bool                 // names of networks of other interfaces than the one that the runtime asks for
	networks   []netconf.Network               // those in records of our network, one of each kind
}

// knows reports whether all valid attachments to n are known, and not only those that
// the runtime knows.
func (left remaining) knows(n netconf.Network) bool {
	return len(left.foreign) == 0 || !left.further[n.Name()]
}

// unknown is the error about networks whose valid attachments are not all known.
func (left remaining) unknown(nets []netconf.Network) error {
	var names, containers []string
	for _, n := range nets {
		names = append(names, strconv.Quote(n.Name()))
	}
	for a := range left.foreign {
		containers = append(containers, terse.ID(a.ContainerID)+" ("+a.IfName+")")
	}
	slices.Sort(containers)
	return fault.New(types.ErrTryAgainLater, fmt.Sprintf("the plugins of %s were not told which attachments are valid, because containers without a record may be attached: %s",
		strings.Join(slices.Compact(names), ", "), strings.Join(containers, ", ")))
}

// left reads all records. It joins the errors of those that cannot be read.
func (m *Manager) left(ctx context.Context, g *garbage) (remaining, error) {
	left := remaining{
		known: true, attached: make(map[string][]types.GCAttachment),
		unrecorded: maps.Clone(g.valid), foreign: maps.Clone(g.valid), further: maps.Clone(g.further),
	}
	var errs []error
	for r, err := range m.store().List(ctx) {
		if err != nil {
			errs = append(errs, g.fail(err))
			left.known = left.known && !strings.HasPrefix(r.Key.ContainerID, "#") && r.Key.Network == g.network && g.stale(r.Key) // a long ID is known by its hash only
			continue
		}
		if r.Value.Refused != nil {
			continue
		}
		own := types.GCAttachment{ContainerID: r.Key.ContainerID, IfName: r.Key.IfName}
		delete(left.foreign, own) // a record has all of an attachment, whatever our network is called by now
		ours := m.ours(g, r)
		if ours {
			delete(left.unrecorded, own)
		}
		if g.failed[r.Key] && (r.State == scratch.Deleting || r.State == scratch.Leftover) {
			continue // the plugin's GC may succeed where its DEL failed
		}
		for _, e := range r.Value.Delegates {
			name := e.Network.Name()
			left.attached[name] = append(left.attached[name], types.GCAttachment{ContainerID: r.Key.ContainerID, IfName: e.IfName})
			if ours {
				if !slices.ContainsFunc(left.networks, func(n netconf.Network) bool { return sameKind(n, e.Network) }) {
					left.networks = append(left.networks, e.Network)
				}
				left.further[name] = left.further[name] || e.IfName != r.Key.IfName
			}
		}
	}
	return left, errors.Join(errs...)
}

// told returns the networks that receive GC: nets, and the recorded ones of other kinds.
// Several of nets with one name and the same plugins may differ in what their plugins do.
func (left remaining) told(nets []netconf.Network) (to []netconf.Network) {
	for _, n := range nets {
		if !slices.ContainsFunc(to, n.Equal) {
			to = append(to, n)
		}
	}
	for _, n := range left.networks {
		if !slices.ContainsFunc(to, func(other netconf.Network) bool { return sameKind(n, other) }) {
			to = append(to, n)
		}
	}
	return to
}

// of returns the valid attachments that n receives.
func (left remaining) of(n netconf.Network) []types.GCAttachment {
	as := slices.AppendSeq(slices.Clone(left.attached[n.Name()]), maps.Keys(left.unrecorded))
	slices.SortFunc(as, func(a, b types.GCAttachment) int {
		return cmp.Or(cmp.Compare(a.ContainerID, b.ContainerID), cmp.Compare(a.IfName, b.IfName))
	})
	return slices.Compact(as)
}
