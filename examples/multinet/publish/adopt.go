package publish

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/autoconf"
	"github.com/metacni/metacni/scratch"
)

const (
	// every is the time between two passes of Follow if nothing has changed. A
	// pod may have been added to the old network meanwhile.
	every = time.Minute

	// firstPass is how long publishing waits for the first pass.
	firstPass = 10 * time.Second
)

// An Adopter takes over containers of the network that ours is published in front of.
// Its methods must not be called by several goroutines at once.
type Adopter struct {
	Publisher *autoconf.Manager // of our network
	Life      *lifecycle.Manager
	Node      adopt.Node // where other programs keep their records; other fields are filled in

	// Tell is called for each attachment that has been taken over, and for each
	// that cannot be, unless the last pass had the same reason.
	Tell func(Outcome)

	told map[string]bool
}

// Pass takes over the containers that there are now. It reports failures to Tell and
// continues.
func (a *Adopter) Pass(ctx context.Context) {
	told := make(map[string]bool)
	for _, o := range a.Take(ctx, false) {
		switch o.Verdict {
		case Adopted:
			a.Tell(o)
		case Skipped:
			if ctx.Err() != nil && errors.Is(o.Err, ctx.Err()) {
				maps.Copy(told, a.told) // the rest has not been seen
				break
			}
			why := o.Err.Error()
			if !a.told[why] && !told[why] {
				a.Tell(o)
			}
			told[why] = true
		}
	}
	a.told = told
}

// Follow runs the Publisher until ctx ends, and calls tell with each of its states. It
// makes a pass before the Publisher publishes, which may take some seconds, then one
// after each state and one each minute. These are made by another goroutine, which
// ends before Follow returns.
func (a *Adopter) Follow(ctx context.Context, tell func(autoconf.State)) error {
	first, cancel := context.WithTimeout(ctx, firstPass)
	a.Pass(first)
	cancel()
	ctx, cancel = context.WithCancel(ctx)
	changed := make(chan struct{}, 1)
	var passes sync.WaitGroup
	passes.Go(func() {
		tick := time.Tick(every)
		for {
			select {
			case <-changed:
			case <-tick:
			case <-ctx.Done():
				return
			}
			a.Pass(ctx)
		}
	})
	defer passes.Wait()
	defer cancel()
	a.Publisher.Observer = func(s autoconf.State) {
		tell(s)
		select {
		case changed <- struct{}{}:
		default: // a pass is due already
		}
	}
	return a.Publisher.Run(ctx)
}

// An Outcome is what [Adopter.Take] has done about one attachment.
type Outcome struct {
	Adoption lifecycle.Adoption // zero if a file could not be understood
	Verdict  Verdict
	Err      error // why it was skipped
}

// Log logs the takeover of the attachment, or why it was skipped.
func (o Outcome) Log(ctx context.Context, log *slog.Logger) {
	if k := o.Adoption.Key; k.ContainerID != "" {
		log = log.With("container", k.ContainerID, "network", k.Network, "ifname", k.IfName)
	}
	if o.Verdict == Skipped {
		log.LogAttrs(ctx, slog.LevelWarn, "attachment not taken over", slog.Any("error", o.Err))
		return
	}
	log.LogAttrs(ctx, slog.LevelInfo, "attachment taken over", slog.Any("networks", o.Networks()))
}

// Networks returns the names of the networks of the attachment.
func (o Outcome) Networks() []string {
	names := make([]string, 0, len(o.Adoption.Attached))
	for _, a := range o.Adoption.Attached {
		names = append(names, a.Network.Name())
	}
	return names
}

// A Verdict says what [Adopter.Take] has done about an attachment.
type Verdict string

// The verdicts.
const (
	Adopted   Verdict = "adopted"   // recorded
	Adoptable Verdict = "adoptable" // in a dry run: it would be recorded
	Recorded  Verdict = "recorded"  // nothing: there is a record, or the attachment has been removed
	Skipped   Verdict = "skipped"   // nothing, because of Outcome.Err
)

// Take takes over the containers of the network that ours is, or would be, published in
// front of, and returns an Outcome for each attachment. With dryRun it records nothing. When
// an attachment cannot be recorded, Take continues with the next. When ctx ends, Take stops,
// and the last Outcome has ctx's error.
func (a *Adopter) Take(ctx context.Context, dryRun bool) []Outcome {
	n := a.Node
	n.Own = multinet.OwnTypes()
	if len(n.Primary) == 0 {
		n.Primary = Primaries(a.Publisher)
	}
	if n.Network == "" {
		name, _ := a.Publisher.Template.Get("name")
		_ = json.Unmarshal(name, &n.Network) // without a name all attachments are skipped
	}
	take, taken := a.Life.Adopt, Adopted
	if dryRun {
		take, taken = a.adoptable, Adoptable
	}
	listed := make(map[scratch.Key]bool) // libcni also has what Multus has
	var done []Outcome
	for found, err := range n.Attachments() {
		if ctx.Err() != nil {
			return append(done, Outcome{Verdict: Skipped, Err: ctx.Err()})
		}
		o := Outcome{Adoption: found, Verdict: Recorded, Err: err}
		if err == nil && !listed[found.Key] {
			if listed[found.Key], o.Err = take(ctx, found); listed[found.Key] {
				o.Verdict = taken
			}
		}
		if o.Err != nil {
			o.Verdict = Skipped
		}
		done = append(done, o)
	}
	return done
}

// adoptable returns what [lifecycle.Manager.Adopt] would answer, as far as the records tell.
func (a *Adopter) adoptable(ctx context.Context, found lifecycle.Adoption) (bool, error) {
	rs, err := a.Life.Container(ctx, found.Key.ContainerID)
	recorded := func(ifName string) bool {
		return slices.ContainsFunc(rs, func(r lifecycle.AddRecord) bool {
			return r.Key.IfName == ifName || slices.ContainsFunc(r.Attached, func(at delegate.Attached) bool { return at.IfName == ifName })
		})
	}
	return err == nil && !slices.ContainsFunc(found.Attached, func(at delegate.Attached) bool { return recorded(at.IfName) }), err
}

// Primaries returns the names of the networks that m has published ours in front of,
// and would publish in front of now.
func Primaries(m *autoconf.Manager) []string {
	var names []string
	add := func(n netconf.Network, err error) {
		if err == nil && n.Name() != "" && !slices.Contains(names, n.Name()) {
			names = append(names, n.Name())
		}
	}
	if ours, ok := Published(m); ok {
		var front struct {
			Delegates      []netconf.Network `json:"delegates"`
			ClusterNetwork string            `json:"clusterNetwork"`
		}
		switch err := ours.Plugins()[0].Decode(&front); {
		case err == nil && front.ClusterNetwork != "": // a path as the plugin sees it
			add(netconf.LoadFile(plugin.Root(m.Root).Dir(m.Dir), filepath.Base(front.ClusterNetwork)))
		case err == nil && len(front.Delegates) > 0:
			add(front.Delegates[0], nil)
		}
	}
	f, err := m.Find()
	add(f.Network, err)
	return names
}

// Published returns the network that m, or a Manager of another of our programs, has
// published, and whether there is one.
func Published(m *autoconf.Manager) (netconf.Network, bool) {
	dir, name := filepath.Split(m.Output)
	for _, ext := range []string{".conflist", ".conf"} {
		n, err := netconf.LoadFile(plugin.Root(m.Root).Dir(dir), name+ext)
		if err == nil && (slices.Contains(m.OwnTypes, n.Plugins()[0].Type()) || n.Plugins()[0].Type() == m.Template.Type()) {
			return n, true
		}
	}
	return netconf.Network{}, false
}

// StateDir returns the directory of the records of p, a published plugin of ours, as a path of
// the node. If p has errors, which an ADD reports, it is the default one.
func StateDir(p netconf.Plugin) string {
	conf, _ := p.MarshalJSON() // it has been read
	dir, _ := multinet.StateDir("", conf)
	return cmp.Or(dir, multinet.DefaultStateDir)
}
