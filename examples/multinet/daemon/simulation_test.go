//go:debug randseednop=0

package daemon

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"

	"github.com/metacni/metacni/delegate/lifecycle"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

var (
	firstSeed = flag.Uint64("seed", 0, "the `seed` of the only simulation; 0 means all of -seeds")
	seeds     = flag.Int("seeds", 6, "`number` of simulations")
)

// TestSimulation runs nodes in simulated time, as many as -seeds says:
//
//	go test -run 'Simulation$' -seeds 1000
//	go test -run 'Simulation$' -seed 7 -v    # only this one, and its log
//
// A node has a daemon, a resident plugin, a runtime with its pods, an API server and a primary
// network. For one to three minutes everything fails: plugins, the API server and the disk; clients
// leave; daemons stop, hand over and die, and resident plugins come and go. Then nothing fails any
// more, and everything must become right: see converge and differs. All the time the guarantees of
// commands are checked: an ADD that succeeds has attached, a DEL that succeeds has detached or is
// queued, each ends in time, a GC collects, and the API server is asked for no
// more than is documented. A bubble does not end while a goroutine is left.
//
// The seed decides when the actors act, and what each of them and each call of a plugin does. Each
// actor has random numbers of its own, and instants that no other actor has, and so a seed
// repeats a failure. What is not decided is which of two goroutines of one daemon comes first at
// one instant, when it starts or dies for instance: see TestSimulationRepeats.
//
// It runs in a process of its own, because it limits the size of files to fill the disk, and seeds
// math/rand for the jitter of client-go.
func TestSimulation(t *testing.T) {
	t.Parallel()
	if !apart(t) {
		return
	}
	first, n := uint64(1), *seeds
	if *firstSeed != 0 {
		first, n = *firstSeed, 1
	}
	for seed := first; seed < first+uint64(n) && !t.Failed(); seed++ {
		if log := simulate(t, seed); n == 1 && testing.Verbose() {
			t.Log("\n" + log)
		}
	}
}

// A seed gives the same log, byte for byte. The scheduler makes one run in a hundred differ: a
// run that does is repeated.
func TestSimulationRepeats(t *testing.T) {
	t.Parallel()
	if !apart(t) {
		return
	}
	for _, seed := range []uint64{1, 3} {
		var logs []string
		for len(logs) < 6 {
			log := simulate(t, seed)
			if slices.Contains(logs, log) {
				break
			}
			logs = append(logs, log)
		}
		if len(logs) == 6 {
			t.Errorf("seed %d: the log differs each time:\n%s", seed, cmp.Diff(logs[0], logs[1]))
		}
	}
}

// apartEnv is set in a process that only simulates.
const apartEnv = "METACNI_SIMULATION"

// apart reports whether this process only simulates. Otherwise another one runs the test, which
// does not write to the files that the go command has given to this one.
func apart(t *testing.T) bool {
	t.Helper()
	if os.Getenv(apartEnv) != "" {
		return true
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", fmt.Sprintf("-test.v=%t", testing.Verbose()),
		fmt.Sprint("-seed=", *firstSeed), fmt.Sprint("-seeds=", *seeds))
	cmd.Env = append(os.Environ(), apartEnv+"=1")
	switch out, err := cmd.CombinedOutput(); {
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	case testing.Verbose():
		t.Logf("%s", out)
	}
	return false
}

// healthy is the limit of files on a disk with room.
var healthy = func() (l syscall.Rlimit) {
	_ = syscall.Getrlimit(syscall.RLIMIT_FSIZE, &l)
	return l
}()

// limitFiles limits the size of files that this process writes, and returns the limit before.
func limitFiles(t *testing.T, l syscall.Rlimit) (before syscall.Rlimit) {
	t.Helper()
	nodetest.OK(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before))
	nodetest.OK(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &l))
	return before
}

// simulate runs the simulation of a seed, and returns its log.
func simulate(t *testing.T, seed uint64) (log string) {
	t.Helper()
	rand.Seed(int64(seed)) //nolint:staticcheck,gosec // of the jitter in client-go
	// What the kernel sends when a file reaches the limit. Nobody reads it. After Ignore, children
	// would ignore it too, for good.
	full := make(chan os.Signal, 1)
	signal.Notify(full, syscall.SIGXFSZ)
	defer signal.Stop(full)
	dir, peer := t.TempDir(), ourselves(t)
	synctest.Test(t, func(t *testing.T) {
		s := newSimulation(t, seed, dir, peer)
		s.story()
		log = s.history()
		if len(s.failures) > 0 {
			t.Errorf("go test -run 'Simulation$' -seed %d\n%s\n%s", seed, strings.Join(s.failures, "\n"), log)
		}
	})
	return log
}

// story is a simulation: some minutes in which everything fails, the time until everything is as
// it should be, and the end.
func (s *simulation) story() {
	r := s.chance("story")
	until := s.start.Add(between(r, time.Minute, 3*time.Minute))
	stopAPI := s.serveAPI()
	s.publishPrimary("bridge")
	s.boot()
	var actors sync.WaitGroup
	for n := range 3 + r.IntN(4) {
		actors.Go(func() { s.run(until, n) })
	}
	actors.Go(func() { s.collect(until) })
	actors.Go(func() { s.breakAPI(until, &stopAPI) })
	actors.Go(func() { s.breakDisk(until) })
	actors.Go(func() { s.changePrimary(until) })
	over := make(chan struct{})
	var residents sync.WaitGroup
	residents.Go(func() { s.comeAndGo(until, over) })
	s.replaceDaemons(until)
	s.mu.Lock()
	s.calm = true
	s.mu.Unlock()
	s.note("nothing fails any more")
	actors.Wait()
	s.converge("after the faults")
	for _, c := range s.with(attached) {
		s.detach(r, c)
		s.remove(c)
	}
	s.converge("in the end")
	s.daemon.stop()
	<-s.daemon.ended
	s.checkBudget()
	close(over)
	residents.Wait()
	stopAPI()
	for _, p := range s.processes {
		<-p.ended
		p.bury()
	}
}

// current returns the daemon.
func (s *simulation) current() *incarnation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.daemon
}

// replaceDaemons stops the daemon, replaces it or kills it, again and again.
func (s *simulation) replaceDaemons(until time.Time) {
	r, own := s.chance("daemons"), time.Microsecond
	for {
		s.pause(own, between(r, 5*time.Second, 90*time.Second))
		if time.Now().After(until) {
			return
		}
		p := s.daemon
		switch r.IntN(3) {
		case 0:
			p.stop()
			s.note("%s is told to stop", p.name)
			<-p.ended
			s.pause(own, between(r, 0, 20*time.Second))
			s.boot()
		case 1:
			s.boot()
			s.pause(own, between(r, 0, 5*time.Second))
			s.note("%s is told to stop, in favour of the next", p.name)
			p.stop()
			<-p.ended
		default:
			s.crash()
			s.pause(own, between(r, time.Millisecond, 20*time.Second))
			s.boot()
		}
	}
}

// breakAPI breaks the API server in one way after the other.
func (s *simulation) breakAPI(until time.Time, stop *func()) {
	r, own := s.chance("faults of the API server"), 2*time.Microsecond
	for time.Now().Before(until) {
		s.pause(own, between(r, time.Second, time.Minute))
		pause := between(r, time.Second, 2*time.Minute)
		s.outages = append(s.outages, span{from: time.Now()})
		switch kind := r.IntN(5); kind {
		case 0:
			s.note("the API server is away")
			(*stop)()
			s.pause(own, pause)
			*stop = s.serveAPI()
		case 1:
			s.note("watches are cut")
			s.api.CutWatches("")
		default:
			f := []kubetest.Fault{
				{Status: 429}, {Verb: "watch", Status: 429, RetryAfter: 5 * time.Second}, {Status: 500}, {Verb: "patch", Status: 409}, {Cut: true}, {BlackHole: true}, {Delay: between(r, time.Second, 20*time.Second)},
			}[r.IntN(7)]
			s.note("the API server has the fault %+v", f)
			heal := s.api.Break(f)
			s.pause(own, pause)
			heal()
		}
		s.outages[len(s.outages)-1].to = time.Now()
		s.note("the API server is well")
	}
}

// breakDisk fills the disk, or takes the records away, for a while.
func (s *simulation) breakDisk(until time.Time) {
	r, own := s.chance("faults of the disk"), 3*time.Microsecond
	for time.Now().Before(until) {
		s.pause(own, between(r, 10*time.Second, 2*time.Minute))
		full := r.IntN(2) == 0
		if full {
			s.note("the disk is full")
			limitFiles(s.T, syscall.Rlimit{Cur: 0, Max: healthy.Max})
		} else {
			s.note("the records cannot be reached")
			state := filepath.Join(s.disk, "state")
			s.must(os.Rename(state, state+".away"))
			s.must(os.WriteFile(state, nil, 0o600))
		}
		s.pause(own, between(r, time.Second, 30*time.Second))
		if full {
			limitFiles(s.T, healthy)
		} else {
			state := filepath.Join(s.disk, "state")
			s.must(os.Remove(state))
			s.must(os.Rename(state+".away", state))
		}
		s.note("the disk is well")
	}
}

func (s *simulation) must(err error) {
	if err != nil {
		s.wrong("%v", err)
	}
}

// publishPrimary replaces the configuration of the primary network.
func (s *simulation) publishPrimary(typ string) {
	s.note("the primary network is of the type %s", typ)
	s.onHealthyDisk(func() {
		temp := filepath.Join(s.dir, "net.d", ".new")
		s.must(os.WriteFile(temp, primary(typ), 0o600))
		s.must(os.Rename(temp, filepath.Join(s.dir, "net.d", "10-primary.conflist")))
	})
}

// changePrimary changes the primary network from time to time.
func (s *simulation) changePrimary(until time.Time) {
	r, own := s.chance("primary"), 4*time.Microsecond
	for time.Now().Before(until) {
		s.pause(own, between(r, 20*time.Second, 3*time.Minute))
		s.publishPrimary([]string{"bridge", "ptp"}[r.IntN(2)])
	}
}

// comeAndGo registers the resident plugin, which goes away from time to time until everything is
// calm, and then stays until the end.
func (s *simulation) comeAndGo(until time.Time, over <-chan struct{}) {
	r, own := s.chance("resident"), 5*time.Microsecond
	for {
		stays := between(r, 5*time.Second, 2*time.Minute)
		if left := time.Until(until); stays > left {
			stays = time.Hour
		}
		s.note("the resident plugin comes")
		if !s.serveResident(stays, over) {
			return
		}
		s.note("the resident plugin has gone")
		s.pause(own, between(r, time.Second, 30*time.Second))
	}
}

// converge waits until everything is as it should be, and fails if that takes too long.
func (s *simulation) converge(when string) {
	var diff string
	for limit := time.Now().Add(15 * time.Minute); time.Now().Before(limit); time.Sleep(5 * time.Second) {
		s.gc()
		if diff = s.differs(); diff == "" {
			s.note("all is right %s", when)
			return
		}
	}
	s.wrong("%s: not right (-want +got):\n%s", when, diff)
}

// A picture is the state of the node and of the API, as it is or should be.
type picture struct {
	Live, Records, Queue []string
	Status               map[string][]string // interfaces by pod
	Primary              string
}

// differs compares what there is with what should be.
func (s *simulation) differs() string {
	var want, got picture
	got.Live, got.Queue = s.exec.Live(), s.queue()
	for r, err := range (&lifecycle.Manager{Dir: filepath.Join(s.disk, "state")}).Records(s.Context()) {
		if err != nil || r.State != scratch.Added {
			got.Records = append(got.Records, fmt.Sprint(r.Key, r.State, err))
			continue
		}
		got.Records = append(got.Records, r.Key.ContainerID)
	}
	got.Status, want.Status = map[string][]string{}, map[string][]string{}
	for _, c := range s.with(attached) {
		want.Records = append(want.Records, c.id)
		for i, typ := range c.types {
			want.Live = append(want.Live, typ+" "+c.id+" "+ifname(i))
			want.Status[c.pod] = append(want.Status[c.pod], ifname(i))
		}
		got.Status[c.pod] = s.statusOf(c.pod)
	}
	slices.Sort(want.Live)
	slices.Sort(want.Records)
	slices.Sort(got.Records)
	text, err := os.ReadFile(filepath.Join(s.dir, "net.d", "10-primary.conflist"))
	s.must(err)
	want.Primary = string(text)
	if _, typ := s.published(); typ != "" {
		got.Primary = string(primary(typ))
	}
	return cmp.Diff(want, got, cmpopts.EquateEmpty())
}

// statusOf returns the interfaces in the status of a pod.
func (s *simulation) statusOf(pod string) (names []string) {
	p := kubetest.Get[corev1.Pod](s.api, "ns", pod)
	if p == nil {
		return nil
	}
	var all []status.Network
	_ = json.Unmarshal([]byte(p.Annotations[status.NetworkStatusAnnotation]), &all) // nothing is not equal
	for _, n := range all {
		names = append(names, n.Interface)
	}
	return names
}

// serveResident serves the resident plugin for a while, and connects again when the connection is
// lost. It reports false when over is closed first.
func (s *simulation) serveResident(stays time.Duration, over <-chan struct{}) bool {
	ctx, cancel := context.WithTimeout(s.Context(), stays)
	defer cancel()
	p := residentOf("still", s.exec)
	var served sync.WaitGroup
	served.Go(func() {
		for ctx.Err() == nil {
			if c, err := s.relay.dial(ctx); err == nil {
				_ = p.Serve(ctx, c) // the connection may be lost
			}
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	defer served.Wait()
	defer cancel()
	select {
	case <-ctx.Done():
		return true
	case <-over:
		return false
	}
}

// checkBudget checks what the daemons have asked of the API server: one patch for each ADD and for
// each daemon that finds a pod recorded, and the Events.
func (s *simulation) checkBudget() {
	patches, most := map[string]int{}, map[string]int{}
	for _, c := range s.pods {
		most[c.pod]++
	}
	for _, a := range s.answers {
		if a.Verb == "patch" && a.code == 200 {
			patches[a.Name]++
		}
	}
	for pod, n := range patches {
		if limit := most[pod] + len(s.processes) - 1; n > limit {
			s.wrong("the status of %s was written %d times, want at most %d", pod, n, limit)
		}
	}
	told := map[string]int{}
	for _, e := range kubetest.List[eventsv1.Event](s.api) {
		if e.Reason == "AddedInterface" {
			told[string(e.Regarding.UID)]++
		}
	}
	for _, c := range s.pods {
		if n := told[c.uid]; n > 1 {
			s.wrong("%d Events that %s is attached", n, c.id)
		}
		if a := s.added[c.uid]; told[c.uid] == 0 && a.by != nil && !a.excused(s.outages) {
			s.wrong("no Event that %s is attached, since %s", c.id, a.at.Sub(s.start))
		}
	}
}

// excused reports whether the Event of an ADD may be lost: the daemon has ended before the API
// server could take it.
func (a added) excused(outages []span) bool {
	return a.by.dead.Load() || slices.ContainsFunc(outages, func(o span) bool {
		return o.from.Before(a.by.death.Add(2*time.Second)) && (o.to.IsZero() || o.to.After(a.at))
	})
}
