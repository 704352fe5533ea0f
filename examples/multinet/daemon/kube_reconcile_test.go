package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

const following = `,"reconcile":true,"nodeName":"n1"`

// newFollowing makes a daemon that follows what running pods select. There are the
// definitions ns/green and ns/full as well, whose plugin has no free device.
func newFollowing(t testing.TB, keys string) *world {
	t.Helper()
	w := inCluster(t, following+keys)
	kubetest.Put(w.api, kubetest.Definition{Namespace: "ns", Name: "green", Config: `{"cniVersion":"1.0.0","type":"bridge"}`})
	kubetest.Put(w.api, kubetest.Definition{Namespace: "ns", Name: "full", Config: `{"cniVersion":"1.0.0","type":"full"}`})
	return w
}

// edit changes what a pod selects, and nothing else.
func (w *world) edit(name, selection string) {
	kubetest.Edit(w.api, "ns", name, func(p *corev1.Pod) {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[nad.NetworksAnnotation] = selection
	})
}

// add has a pod that selects networks attached.
func (w *world) add(t testing.TB, name, selection string) *skel.CmdArgs {
	t.Helper()
	a := w.pod(t, name)
	w.edit(name, selection)
	a.StdinData = []byte(conf(annotated(selection)))
	nodetest.OK(t, w.client.Execute(t.Context(), "ADD", a))
	return a
}

// recorded are the attachments of a container, as "net1 ns/blue", without the primary.
func (w *world) recorded(t testing.TB, container string) (all []string) {
	t.Helper()
	rs, err := (&lifecycle.Manager{Dir: w.conf.stateDir}).Container(t.Context(), container)
	nodetest.OK(t, err)
	for _, r := range rs {
		for i, a := range r.Attached {
			line := a.IfName + " " + cmp.Or(nad.ParseOrigin(a.Origin).Definition.String(), a.Network.Name())
			if !r.Whole(i) {
				line += " half"
			}
			if a.IfName != r.Key.IfName {
				all = append(all, line)
			}
		}
	}
	return all
}

// shown are the networks in the status of a pod, as recorded.
func (w *world) shown(t testing.TB, name string) (all []string) {
	t.Helper()
	var networks []status.Network
	if text := w.status(name); text != "" {
		nodetest.OK(t, json.Unmarshal([]byte(text), &networks))
	}
	for _, n := range networks {
		if !n.Default {
			all = append(all, n.Interface+" "+n.Name)
		}
	}
	return all
}

// wantNetworks waits until a pod has these networks: in the record, in the status, and
// attached by plugins.
func (w *world) wantNetworks(t testing.TB, name string, want ...string) {
	t.Helper()
	var recorded, shown []string
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("pod %s: recorded %q, shown %q, want %q", name, recorded, shown, want)
		}
	})
	w.until(t, fmt.Sprintf("pod %s has %q", name, want), func() bool {
		recorded, shown = w.recorded(t, "c-"+name), w.shown(t, name)
		return slices.Equal(recorded, want) && slices.Equal(shown, want)
	})
	attached := 0
	for _, live := range w.fake.Live() {
		if strings.Contains(live, " c-"+name+" ") {
			attached++
		}
	}
	nodetest.Equal(t, "attached with the primary", attached, len(want)+1)
}

// What is selected while a pod runs is attached, what is not selected any more is detached,
// the status says so once for each edit, and so do Events.
func TestEditsOfTheAnnotationOfARunningPodAreFollowed(t *testing.T) {
	t.Parallel()
	w := newFollowing(t, "").start(t)
	a := w.add(t, "one", "blue")
	w.wantNetworks(t, "one", "net1 ns/blue")
	for _, tt := range []struct {
		selection string
		want      []string
	}{
		{"blue, green", []string{"net1 ns/blue", "net2 ns/green"}},
		{"green", []string{"net2 ns/green"}},
		{"green,ns/blue@x", []string{"net2 ns/green", "x ns/blue"}},
		{"green@x,blue@y", []string{"x ns/green", "y ns/blue"}},
		{"blue@x,green@y", []string{"x ns/blue", "y ns/green"}}, // swapped
		{"", nil},
	} {
		before := w.api.Count("patch", "pods/status")
		w.edit("one", tt.selection)
		w.wantNetworks(t, "one", tt.want...)
		nodetest.Equal(t, "writes after "+tt.selection, w.api.Count("patch", "pods/status")-before, 1)
	}
	want(t, "CHECK", w.command(t, "CHECK", a, annotated("")), 0, "")
	want(t, "DEL", w.command(t, "DEL", a, annotated("")), 0, "")
	wantSeries(t, w.final(t), map[string]float64{
		`multinetd_pods_differing`:                                     0,
		`multinetd_reconciles_total{action="attach",outcome="ok"}`:     6,
		`multinetd_reconciles_total{action="detach",outcome="ok"}`:     7,
		`multinetd_reconciles_total{action="attach",outcome="failed"}`: 0,
		`multinetd_reconciles_total{action="detach",outcome="failed"}`: 0,
	})
	var notes []string
	for _, e := range kubetest.List[eventsv1.Event](w.api) {
		notes = append(notes, e.Reason+": "+e.Note)
	}
	for _, want := range []string{
		"AddedInterface: Add eth0 [10.9.0.2] from multi, net1 [10.9.1.2] from ns/blue", // although it is sent later than others
		"AddedInterface: Add net2 [10.9.0.2] from ns/green",
		"RemovedInterface: Remove net1 from ns/blue",
		"AddedInterface: Add x [10.9.1.2] from ns/blue",
		"AddedInterface: Add x [10.9.0.2] from ns/green, y [10.9.1.2] from ns/blue",
	} {
		if !slices.Contains(notes, want) {
			t.Errorf("no Event %q in %q", want, notes)
		}
	}
	w.clean(t)
}

// A network that cannot be attached stops no other. The pod counts as one that differs, an
// Event says why, and it is tried again until somebody mends it. One that cannot be detached has an
// Event too, and is left to the next sweep or DEL.
func TestFailureOfANetworkOfARunningPodIsToldAndTriedAgain(t *testing.T) {
	t.Parallel()
	w := newFollowing(t, `,"nadWait":"10ms"`)
	w.node.FailOn("DEL macvlan", 101)
	w.start(t).add(t, "one", "blue")
	w.edit("one", "blue,full@x,gone@y,green")
	w.wantNetworks(t, "one", "net1 ns/blue", "net2 ns/green")
	differing := func() float64 { return w.metric(t, "multinetd_pods_differing") }
	w.until(t, "the pod differs", func() bool { return differing() == 1 })
	tries := func() int {
		return strings.Count(strings.Join(w.fake.Trace(), "\n"), "ADD full")
	}
	w.until(t, "it is tried again", func() bool { return tries() > 1 })
	w.edit("one", "blue,green,nowhere/blue")
	for _, network := range []string{"full", "gone", "nowhere"} {
		w.until(t, "there is an Event about "+network, func() bool { return w.told("one", "FailedAddingInterface", network) > 0 })
	}
	w.edit("one", "blue,green")
	w.until(t, "the pod does not differ", func() bool { return differing() == 0 })
	for _, e := range kubetest.List[eventsv1.Event](w.api) {
		nodetest.Lacks(t, e.Reason, e.Note, "\n", "ATTACH")
		if e.Action == "x" && !strings.HasPrefix(e.Note, "ns/full: ") {
			t.Errorf("it does not name the definition: %s", e.Note)
		}
	}
	w.edit("one", "green")
	w.until(t, "there is an Event", func() bool { return w.told("one", "FailedRemovingInterface", "no") > 0 })
	w.until(t, "the status lacks it", func() bool { return slices.Equal(w.shown(t, "one"), []string{"net2 ns/green"}) })
	if got := w.final(t)[`multinetd_reconciles_total{action="attach",outcome="failed"}`]; got < 4 {
		t.Errorf("%v failures are counted", got)
	}
}

// Pods that end, pods that nobody has attached, and containers that another program has
// attached stay as they are. The log says once which networks are not known. A pod that is deleted by
// force is followed by one of the same name, while its container runs on: a runtime that does not tell
// the UID makes them look the same.
func TestPodsThatEndOrAreNotKnownAreLeftAlone(t *testing.T) {
	t.Parallel()
	w := newFollowing(t, "")
	adopted := w.pod(t, "adopted")
	w.adopt(t, adopted, "bridge", "macvlan")
	w.start(t)
	w.add(t, "failed", "blue")
	w.add(t, "running", "blue")
	alike := w.pod(t, "alike")
	w.edit("alike", "blue")
	alike.Args, _, _ = strings.Cut(alike.Args, ";K8S_POD_UID=")
	want(t, "ADD", w.command(t, "ADD", alike, annotated("blue")), 0, "")
	kubetest.Delete[corev1.Pod](w.api, "ns", "alike")
	w.pod(t, "alike")
	w.pod(t, "stranger")
	p := kubetest.Get[corev1.Pod](w.api, "ns", "failed")
	p.Status.Phase = corev1.PodFailed
	kubetest.Put(w.api, p)
	seen := len(w.fake.Calls())
	for _, name := range []string{"failed", "stranger", "adopted", "alike"} {
		w.edit(name, "green")
	}
	w.edit("adopted", "")
	for _, words := range []string{"does not say which networks", "K8S_POD_UID"} {
		w.until(t, "it is logged", func() bool { return strings.Contains(w.logged.String(), words) })
	}
	w.edit("running", "") // the last: the others had their turn
	w.wantNetworks(t, "running")
	nodetest.Equal(t, "calls", len(w.fake.Trace()[seen:]), 1)
	nodetest.OK(t, w.stop())
	nodetest.Equal(t, "logged", w.logged.Count("does not say which networks"), 1)
}

// If the pod asks for a network with other options, the attachment stays and an Event says
// so, or is made again.
func TestOnChangeDecidesWhatOtherOptionsDo(t *testing.T) {
	t.Parallel()
	const before, after = `[{"name":"blue","interface":"x"}]`, `[{"name":"blue","interface":"x","mac":"02:00:00:00:00:01"}]`
	for _, replace := range []bool{false, true} {
		keys := map[bool]string{true: `,"onChange":"replace"`}[replace]
		w := newFollowing(t, keys).start(t)
		w.add(t, "one", before)
		w.edit("one", after)
		want, calls := "Pod one NetworksIgnored", 2
		if replace {
			want, calls = "Pod one RemovedInterface", 4
		}
		w.until(t, "there is an Event", func() bool { return slices.Contains(w.events(), want) })
		w.wantNetworks(t, "one", "x ns/blue")
		w.until(t, "the plugins are called", func() bool { return len(w.fake.Calls()) == calls })
		w.until(t, "the pod differs if the network stays", func() bool { return (w.metric(t, "multinetd_pods_differing") == 1) != replace })
		nodetest.OK(t, w.stop())
	}
}

// What a pod selects is attached again when somebody detaches it by request. What another
// controller attaches over the socket is not the pod's; that both are at work is logged once.
func TestRequestsWhileReconcileIsOn(t *testing.T) {
	t.Parallel()
	w := newFollowing(t, "").start(t)
	a := w.add(t, "one", "blue")
	w = w.next(t, following).start(t) // in which no pass follows from the ADD
	w.edit("one", "blue,green")
	w.wantNetworks(t, "one", "net1 ns/blue", "net2 ns/green")
	w.onSocket(t, "DEL", a, "net1", "blue")
	w.until(t, "it is attached again", func() bool { return strings.Count(strings.Join(w.fake.Trace(), "\n"), "ADD macvlan net1") == 2 })
	w.wantNetworks(t, "one", "net2 ns/green", "net1 ns/blue")
	w.onSocket(t, "ADD", a, "hot0", "hot")
	w.edit("one", "")
	w.wantNetworks(t, "one", "hot0 hot")
	nodetest.Equal(t, "logged", w.logged.Count("multus-dynamic-networks-controller"), 1)
}

// A DEL does not wait for a network that is being attached because the pod selects it, nor
// does the end of the daemon. Nothing of it is left, and the next daemon attaches it.
func TestAttachingEndsWithTheContainerAndTheDaemon(t *testing.T) {
	t.Parallel()
	w := newFollowing(t, "")
	hangs := make(chan struct{}, 10)
	macvlan := w.fake.Plugins["macvlan"]
	w.node.On("ADD macvlan", func(ctx context.Context, _ delegatetest.Invocation) error {
		hangs <- struct{}{}
		<-ctx.Done()
		return errors.New("killed")
	})
	w.start(t)
	one := w.add(t, "one", "")
	w.add(t, "two", "")
	w.edit("one", "blue")
	nodetest.Come(t, hangs, "the ADD of the plugin")
	want(t, "DEL", w.command(t, "DEL", one, annotated("")), 0, "")
	w.edit("two", "blue")
	nodetest.Come(t, hangs, "the ADD of the plugin")
	nodetest.OK(t, w.stop())
	nodetest.Equal(t, "attached", w.fake.Live(), []string{"bridge c-two eth0"})
	if got := w.events(); slices.ContainsFunc(got, func(r string) bool { return strings.Contains(r, "Failed") }) {
		t.Errorf("Events %q", got)
	}
	w.fake.Plugins["macvlan"] = macvlan
	w.next(t, following).start(t).wantNetworks(t, "two", "net1 ns/blue")
}

// A pod that ends while its networks are being changed gets no more of them.
func TestPodThatEndsDuringAPassGetsNothingMore(t *testing.T) {
	t.Parallel()
	w := newFollowing(t, "")
	attaching, finish := w.node.Gate("ADD macvlan")
	w.start(t)
	w.add(t, "one", "")
	w.add(t, "two", "")
	w.edit("one", "blue,green")
	nodetest.Come(t, attaching, "the ADD of the plugin")
	p := kubetest.Get[corev1.Pod](w.api, "ns", "one")
	p.Status.Phase = corev1.PodSucceeded
	kubetest.Put(w.api, p)
	w.edit("two", "green") // the daemon sees this later
	w.wantNetworks(t, "two", "net1 ns/green")
	finish()
	w.wantNetworks(t, "one", "net1 ns/blue")
}

// A story is what happens to pods, and to the daemon of their node.
type story struct {
	*world
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

// selections are what the pods of a story select, and the networks that they have then, with the
// interface if it is asked for.
var selections = map[string][]string{
	"": nil, "blue": {"ns/blue"}, "blue,green": {"ns/blue", "ns/green"}, "green,blue": {"ns/blue", "ns/green"}, "blue,blue": {"ns/blue", "ns/blue"},
	"green@x,blue@y": {"x ns/green", "y ns/blue"}, "blue@x,green@y": {"x ns/blue", "y ns/green"}, "blue,green@x,other/red": {"ns/blue", "other/red", "x ns/green"},
}

// Whatever is edited, added, deleted, broken and restarted: in the end each pod has the
// networks that it selects, in its record, in its status, and made by plugins.
func TestPodsHaveWhatTheySelectWhateverHappens(t *testing.T) {
	t.Parallel()
	for seed := range 12 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			s := &story{world: newFollowing(t, storyKeys), random: rand.New(rand.NewPCG(uint64(seed), 1)), heal: func() {}, sick: new(atomic.Bool)} //nolint:gosec // it must be repeatable
			s.node.On("", func(_ context.Context, c delegatetest.Invocation) error {
				if c.Plugin == "macvlan" && s.sick.Load() {
					return errors.New("not now")
				}
				return nil
			})
			s.start(t)
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

// selection is one of selections.
func (s *story) selection() string {
	all := slices.Sorted(maps.Keys(selections))
	return all[s.random.IntN(len(all))]
}

// event lets something happen.
func (s *story) event(t *testing.T) {
	t.Helper()
	p := s.pods[s.random.IntN(len(s.pods))]
	switch n := s.random.IntN(20); {
	case n < 1:
		s.tell("%s has an annotation that cannot be parsed", p.name)
		s.edit(p.name, "[{")
	case n < 8:
		p.selected = s.selection()
		s.tell("%s selects %q", p.name, p.selected)
		s.edit(p.name, p.selected)
	case n < 13 && !p.added:
		stale := s.selection() // the runtime knows another one
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
		s.world = s.next(t, following+storyKeys)
		s.startUnsynced(t)
	}
}

// end mends everything, and waits until each pod has what it selects, in the record, in the status,
// and made by plugins, and nothing else but what is recorded as left of an ADD that has failed.
func (s *story) end(t *testing.T) {
	t.Helper()
	s.heal()
	s.sick.Store(false)
	for _, p := range s.pods {
		if p.added {
			s.edit(p.name, p.selected+" ") // so that nobody has to wait for the next try
		} else {
			want(t, "DEL", s.command(t, "DEL", p.args, annotated("")), 0, "")
		}
	}
	s.until(t, "each pod has what it selects", func() bool {
		var attached, left []string // as "container ifname"
		for _, p := range s.pods {
			recorded := s.recorded(t, p.args.ContainerID)
			if p.added && (!p.has(recorded) || !slices.Equal(recorded, s.shown(t, p.name))) {
				return false
			}
			for _, r := range recorded {
				ifname, _, _ := strings.Cut(r, " ")
				attached = append(attached, p.args.ContainerID+" "+ifname)
			}
			if p.added {
				attached = append(attached, p.args.ContainerID+" eth0")
				left = append(left, s.leftovers(t, p.args.ContainerID)...)
			}
		}
		for _, live := range s.fake.Live() {
			_, live, _ = strings.Cut(live, " ")
			i := slices.Index(attached, live)
			if i >= 0 {
				attached = slices.Delete(attached, i, i+1)
			} else if !slices.Contains(left, live) {
				return false
			}
		}
		return len(attached) == 0 && s.metric(t, "multinetd_pods_differing") == 0
	})
}

// has reports whether what is recorded is what p selects.
func (p *storyPod) has(recorded []string) bool {
	left := slices.Clone(recorded)
	for _, network := range slices.Backward(selections[p.selected]) { // those with an interface first
		i := slices.IndexFunc(left, func(r string) bool { return r == network || strings.HasSuffix(r, " "+network) })
		if i < 0 {
			return false
		}
		left = slices.Delete(left, i, i+1)
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
			if len(a.Gone) < len(a.Network.Plugins()) {
				all = append(all, container+" "+a.IfName)
			}
		}
	}
	return all
}

// passed waits until the daemon has passed over all pods, of which one was edited last.
func (w *world) passed(t *testing.T) {
	t.Helper()
	w.edit("last", "green")
	w.wantNetworks(t, "last", "net1 ns/green")
	w.edit("last", "")
	w.wantNetworks(t, "last")
}

// lists are the requests for one pod.
func (w *world) lists() (n int) {
	for _, r := range w.api.Requests() {
		if r.Verb == "list" && strings.Contains(r.Query, "metadata.name") {
			n++
		}
	}
	return n
}

// A connection to the API server can be half open for minutes. What the daemon knew before an ADD
// detaches nothing that the ADD has attached; neither does it while the API server is away.
func TestNothingIsDetachedByWhatASilentWatchHasShown(t *testing.T) {
	t.Parallel()
	w := newFollowing(t, "").start(t)
	a := w.pod(t, "one")
	w.edit("one", "blue")
	w.until(t, "the pod is known", func() bool { return w.metric(t, `multinetd_view_objects{resource="pods"}`) == 1 })
	before := w.api.Count("list", "pods")
	heal := w.api.Break(kubetest.Fault{Verb: "watch", Resource: "pods", BlackHole: true})
	w.edit("one", "blue,green")
	away := w.api.Break(kubetest.Fault{Verb: "list", Resource: "pods", Status: 500})
	want(t, "ADD", w.command(t, "ADD", a, annotated("blue,green")), 0, "")
	w.until(t, "it is asked", func() bool { return w.api.Count("list", "pods") > before+1 })
	away()
	asked := w.lists()
	w.until(t, "it is answered", func() bool { return w.lists() > asked })
	nodetest.Equal(t, "networks", w.recorded(t, "c-one"), []string{"net1 ns/blue", "net2 ns/green"})
	w.edit("one", "green")
	heal()
	w.wantNetworks(t, "one", "net2 ns/green")
	nodetest.Equal(t, "networks that were detached", w.final(t)[`multinetd_reconciles_total{action="detach",outcome="ok"}`], 1)
}

// The database of the API server is replaced by a copy from before an edit. The status of the pod
// is written again, and its networks stay, whichever daemon runs then, until somebody edits the
// pod. What was restored while no daemon ran counts as what the API server has, if the pod has a
// status: the last daemon may have ended before it wrote another.
func TestNothingIsDetachedByAnOlderDatabase(t *testing.T) {
	t.Parallel()
	w := newFollowing(t, "").start(t)
	w.add(t, "last", "")
	w.add(t, "one", "blue")
	w.wantNetworks(t, "one", "net1 ns/blue")
	restore := w.api.Backup()
	w.edit("one", "blue,green")
	w.wantNetworks(t, "one", "net1 ns/blue", "net2 ns/green")
	restore()
	w.api.SetToken("new") // otherwise the watch would be silent for three minutes
	_, err := w.api.Kubeconfig(w.dir)
	nodetest.OK(t, err)
	both := []string{"net1 ns/blue", "net2 ns/green"}
	w.until(t, "there is an Event", func() bool { return w.told("one", "NetworksIgnored", "edit the annotation") > 0 })
	w.wantNetworks(t, "one", both...)
	w = w.next(t, following).start(t)
	w.passed(t)
	w.until(t, "the pod differs", func() bool { return w.metric(t, "multinetd_pods_differing") == 1 })
	w.wantNetworks(t, "one", both...)
	w.edit("one", "blue,green")
	w.until(t, "the pod does not differ", func() bool { return w.metric(t, "multinetd_pods_differing") == 0 })
	w.edit("one", "blue")
	w.wantNetworks(t, "one", "net1 ns/blue")
}
