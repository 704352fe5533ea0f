package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/kube/kubetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf"
)

// A story is what happens to pods, and to the daemon of their node.
type story struct {
	*town
	random *rand.Rand
	told   []string
	pods   []*storyPod
	sick   *atomic.Bool // the plugin macvlan fails
	heal   func()       // of a fault of the API
}

type storyPod struct {
	name     string
	args     *skel.CmdArgs
	selected string
	added    bool
}

const storyKeys = `,"statusPolicy":"async","nadWait":"10ms","podWait":"10ms"`

// Whatever is edited, added, deleted, broken and restarted: in the end each pod has the
// networks that it selects, in its record, in its status, and made by plugins.
func TestPodsHaveWhatTheySelectWhateverHappens(t *testing.T) {
	t.Parallel()
	seeds := 12
	if testing.Short() {
		seeds = 6
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			s := &story{town: newFollowing(t, storyKeys), random: rand.New(rand.NewPCG(uint64(seed), 1)), heal: func() {}, sick: new(atomic.Bool)} //nolint:gosec // it must be repeatable
			macvlan := s.fake.Plugins["macvlan"]
			s.fake.Plugins["macvlan"] = func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
				if s.sick.Load() {
					return delegatetest.FailOn("", 101, "not now", macvlan)(ctx, c)
				}
				return macvlan(ctx, c)
			}
			s.town = s.start(t)
			for i := range 3 {
				name := fmt.Sprint("pod", i)
				s.pods = append(s.pods, &storyPod{name: name, args: s.pod(t, name)})
			}
			t.Cleanup(func() {
				if t.Failed() {
					t.Log(strings.Join(s.told, "\n"))
				}
			})
			for range 25 {
				s.event(t)
			}
			s.end(t)
		})
	}
}

func (s *story) tell(format string, args ...any) {
	s.told = append(s.told, fmt.Sprintf(format, args...))
}

// event lets something happen.
func (s *story) event(t *testing.T) {
	t.Helper()
	p := s.pods[s.random.IntN(len(s.pods))]
	selections := []string{
		"", "blue", "green", "blue,green", "green,blue", "blue,blue", "green@x,blue@y", "blue@x,green@y", "other/red@x", "blue,green@x,other/red",
	}
	switch n := s.random.IntN(20); {
	case n < 1:
		s.tell("%s has an annotation that cannot be parsed", p.name)
		s.edit(t, p.name, "[{")
	case n < 8:
		p.selected = selections[s.random.IntN(len(selections))]
		s.tell("%s selects %q", p.name, p.selected)
		s.edit(t, p.name, p.selected)
	case n < 13 && !p.added:
		stale := selections[s.random.IntN(len(selections))] // the runtime knows another one
		err := s.command(t, "ADD", p.args, annotated(stale))
		s.tell("ADD %s, which selected %q: %v", p.name, stale, err)
		p.added = err == nil
	case n < 15:
		s.tell("DEL %s: %v", p.name, s.command(t, "DEL", p.args, annotated("")))
		p.added = false
	case n < 17:
		s.sick.Store(!s.sick.Load())
		s.tell("macvlan fails: %t", s.sick.Load())
	case n < 19:
		faults := []kubetest.Fault{{Verb: "patch", Resource: "pods/status", Status: 500}, {Verb: "watch", Status: 500}, {Verb: "patch", Resource: "pods/status", Cut: true}, {Resource: "events", Status: 403}}
		s.heal()
		i := s.random.IntN(len(faults) + 1)
		s.heal = func() {}
		if i < len(faults) {
			s.heal = s.api.Break(faults[i])
		}
		s.tell("the API has fault %d of %d", i, len(faults))
		s.api.CutWatches("pods")
	default:
		s.tell("the daemon is replaced")
		s.town = s.again(t, storyKeys)
		s.world.start(t)
	}
}

// end mends everything, and checks what there is.
func (s *story) end(t *testing.T) {
	t.Helper()
	s.heal()
	s.sick.Store(false)
	for _, p := range s.pods {
		if p.added {
			s.edit(t, p.name, p.selected+" ") // so that nobody has to wait for the next try
		}
	}
	for _, p := range s.pods {
		if !p.added {
			want(t, "DEL", s.command(t, "DEL", p.args, annotated("")), 0, "")
			continue
		}
		var recorded, shown []string
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s selects %q, has %q, shows %q", p.name, p.selected, recorded, shown)
			}
		})
		s.until(t, p.name+" has what it selects", func() bool {
			recorded, shown = s.recorded(t, p.args.ContainerID), s.shown(t, p.name)
			return p.has(t, recorded) && slices.Equal(recorded, shown)
		})
	}
	var attached, left, live []string
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("recorded %q and the leftovers %q, attached %q", attached, left, live)
		}
	})
	s.until(t, "what is recorded is attached, and nothing else but leftovers", func() bool {
		attached, left = s.attached(t)
		live = s.live()
		// A leftover may be gone: the DEL of an attachment of its name took it along.
		recorded := append(slices.Clone(attached), left...)
		return all(attached, live) && all(live, recorded)
	})
	s.until(t, "no pod differs", func() bool {
		_, text := s.get(t, "/metrics")
		return series(t, text)["multinetd_pods_differing"] == 0
	})
}

// all reports whether each of some is among others.
func all(some, others []string) bool {
	return !slices.ContainsFunc(some, func(s string) bool { return !slices.Contains(others, s) })
}

// attached are the recorded interfaces and the leftovers beside them, as "container ifname".
func (s *story) attached(t *testing.T) (attached, left []string) {
	t.Helper()
	for _, p := range s.pods {
		if p.added {
			for _, r := range append(s.recorded(t, p.args.ContainerID), "eth0 primary") {
				ifname, _, _ := strings.Cut(r, " ")
				attached = append(attached, p.args.ContainerID+" "+ifname)
			}
			left = append(left, s.leftovers(t, p.args.ContainerID)...)
		}
	}
	return attached, left
}

// live are the interfaces that plugins have made, as "container ifname".
func (s *story) live() (live []string) {
	for _, l := range s.fake.Live() {
		_, l, _ = strings.Cut(l, " ")
		live = append(live, l)
	}
	return live
}

// has reports whether what is recorded is what p selects.
func (p *storyPod) has(t *testing.T, recorded []string) bool {
	t.Helper()
	selections, err := netconf.ParseSelection(p.selected)
	nodetest.OK(t, err)
	left := slices.Clone(recorded)
	for _, explicit := range []bool{true, false} {
		for _, s := range selections {
			name := "ns/" + s.Name
			if s.Namespace != "" {
				name = s.Namespace + "/" + s.Name
			}
			if explicit != (s.Interface != "") {
				continue
			}
			i := slices.IndexFunc(left, func(r string) bool {
				ifname, network, _ := strings.Cut(r, " ")
				return network == name && (!explicit || ifname == s.Interface)
			})
			if i < 0 {
				return false
			}
			left = slices.Delete(left, i, i+1)
		}
	}
	return len(left) == 0
}

// leftovers are what is left in a container of ADDs that have failed, as "container ifname".
func (s *story) leftovers(t *testing.T, container string) (all []string) {
	t.Helper()
	rs, err := (&lifecycle.Manager{Dir: s.conf.stateDir}).Container(t.Context(), container)
	nodetest.OK(t, err)
	for _, r := range rs {
		for _, a := range r.Leftovers {
			if len(delegate.Left([]delegate.Attached{a})) > 0 {
				all = append(all, container+" "+a.IfName)
			}
		}
	}
	return all
}
