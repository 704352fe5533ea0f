package lifecycle

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/metacni/metacni/scratch"
)

var (
	firstSeed = flag.Uint64("history.seed", 1, "seed of the first history of TestGuaranteesHoldInEveryHistory")
	histories = flag.Uint64("history.count", 60, "number of histories of TestGuaranteesHoldInEveryHistory")
)

// Whatever is done to a few containers, whatever fails and wherever the process dies, every
// call of a plugin is one that the record on disk allows, what is attached is recorded, and
// an operation leaves what its answer promises: see [world.allows] and [world.keeps]. In the
// end everything can be removed. Every third history has Invoker.Parallel.
func TestGuaranteesHoldInEveryHistory(t *testing.T) {
	t.Parallel()
	base := fastDir(t)
	var next atomic.Uint64
	var failed atomic.Bool
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for i := next.Add(1) - 1; i < *histories && !failed.Load(); i = next.Add(1) - 1 {
				seed := *firstSeed + i
				story, parallel := randomOps(rand.New(rand.NewPCG(seed, 0)), seed%3 == 0), int(3*(1-min(seed%3, 1)))
				wrong := replay(t, base, story, parallel)
				if wrong == "" || !failed.CompareAndSwap(false, true) {
					continue
				}
				t.Errorf("seed %d, with Parallel %d: %s", seed, parallel, wrong)
				story = shrink(story, func(ops []op) bool { return replay(t, base, ops, parallel) != "" })
				for _, o := range story { // what is left
					t.Logf("%+v", o)
				}
			}
		})
	}
	all.Wait()
}

// replay does ops on a new node, and then removes everything. It returns what goes wrong
// first.
func replay(t *testing.T, base string, ops []op, parallel int) string {
	t.Helper()
	dir, err := os.MkdirTemp(base, "") //nolint:usetesting // there are many, and they are in base
	if err != nil {
		return err.Error()
	}
	defer func() { _ = os.RemoveAll(dir) }()
	w := newWorld(t, dir, parallel)
	for i, o := range slices.Concat(ops, ending()) {
		if wrong := w.do(o); wrong != "" {
			return fmt.Sprintf("after operation %d, %+v:\n%s", i+1, o, wrong)
		}
	}
	if left := append(w.Exec.Live(), w.files()...); len(left) > 0 {
		return fmt.Sprintf("left when everything is deleted: %q", left)
	}
	return ""
}

// ending are the operations that remove everything.
func ending() []op {
	ops := []op{{verb: "return"}}
	for _, k := range historyKeys() {
		ops = append(ops, op{verb: "forget", key: k}, op{verb: "del", key: k})
	}
	for _, k := range historyKeys() { // a leftover waits for those that have its interface
		ops = append(ops, op{verb: "sweep", key: k})
	}
	return ops
}

// shrink returns a part of ops that still fails, and that does not any more without one
// of its operations.
func shrink(ops []op, fails func([]op) bool) []op {
	for i := range slices.Backward(ops) {
		if try := slices.Delete(slices.Clone(ops), i, i+1); fails(try) {
			ops = try
		}
	}
	return ops
}

// An op is one operation of a history. It does not depend on those before it.
//
// Besides the verbs of Manager there are: "sweep" of one attachment, "vanish" of a plugin,
// "return" of all, "tries" (from now on Manager.DelTries is shape), "damage" (of a record) and
// "tear" (its file loses its end), "forget" (an operator cleans up after a damaged record), and
// "reuse" (the network namespace of key's container becomes another one).
type op struct {
	verb   string
	key    scratch.Key
	shape  int    // which of plans
	ifname string // of detach
	plugin string // of vanish
	valid  []scratch.Key
	nets   bool // gc has a network of the configuration
	adjust bool // add and attach with Adjust
	next   bool // add and attach with another plan
	faults []mishap
}

// A mishap is what goes wrong at a place: a call such as "ADD bridge", the search for a
// plugin such as "find bridge", "plan", "next", "adjust" or "report".
//
// Kinds: "error" (with a code), "plain" (without), "noise" and "silence" (on stdout), "hang"
// (until the operation's context ends, which is now), "cancel" (the context ends and the call
// succeeds), "spoil" (adjust leaves no result), "crash" (the process dies when the call has
// begun), "crash-after" (when it has ended), "overtake" (a Del comes in, and the call hangs).
// At "start" the context has ended before the operation begins; "no list" is a gc without one.
type mishap struct {
	at, kind string
	nth      int // the only time it happens; 0 is every time
}

// code is that of an "error" at a place.
func (f mishap) code() uint { return 100 + uint(slices.Index(places, f.at)) } //nolint:gosec // it is one of them

var (
	pluginTypes = []string{"bridge", "tuning", "macvlan", "ipvlan"}
	places      = allPlaces()
)

func allPlaces() []string {
	all := []string{"plan", "adjust", "report", "next"}
	for _, verb := range []string{"ADD", "DEL", "CHECK", "GC", "find"} {
		for _, p := range pluginTypes {
			all = append(all, verb+" "+p)
		}
	}
	return all
}

// plans are what an operation attaches, or wants to be attached: for each attachment the
// network, its plugins and its interface. OWN is the interface of the key.
var plans = map[string][][]string{
	"add": {
		{"blue bridge+tuning OWN", "red macvlan SECOND"},
		{"blue bridge+tuning OWN"},
		{"red macvlan OWN", "blue bridge hot0"},
		{"blue tuning+bridge OWN", "red macvlan net0", "green ipvlan SECOND"},
		{},
	},
	"attach": {
		{"green ipvlan hot0"}, {"green ipvlan hot1"}, {"yellow ipvlan+macvlan hot0", "blue bridge hot1"}, {"green ipvlan OWN"}, {},
	},
	"reconcile": {
		{"green ipvlan hot0"}, {"yellow ipvlan+macvlan hot0", "blue bridge hot1"}, {"green ipvlan hot1"}, {"blue bridge hot1", "green ipvlan hot0"}, {},
	},
	"next of add":    {{"blue bridge+ipvlan OWN"}},
	"next of attach": {{"blue bridge+ipvlan hot1"}},
}

// historyKeys are few, so that they get in each other's way.
func historyKeys() []scratch.Key {
	var ks []scratch.Key
	for c, other := range []string{"eth0", "eth2"} {
		ks = append(ks, key(fmt.Sprint("c", c), "eth0"), key(fmt.Sprint("c", c), "eth1"),
			scratch.Key{Network: "other", ContainerID: fmt.Sprint("c", c), IfName: other})
	}
	return ks
}

// verbs are drawn as often as they stand here.
var verbs = strings.Fields(strings.Repeat("add ", 14) + strings.Repeat("attach ", 11) + strings.Repeat("del reconcile ", 7) +
	strings.Repeat("check detach gc sweep ", 4) + "reuse reuse vanish vanish return return return tries damage tear tear forget forget")

// randomOps is a history. With several attachments at once no process dies in it and no
// Del overtakes, because that would happen to one call of several.
func randomOps(r *rand.Rand, parallel bool) []op {
	ops := make([]op, 50)
	k := historyKeys()[0]
	for i := range ops {
		if r.IntN(5) < 2 {
			k = pick(r, historyKeys())
		}
		o := op{
			verb: pick(r, verbs), key: k, plugin: pick(r, pluginTypes), nets: r.IntN(3) == 0, adjust: r.IntN(2) == 0, next: r.IntN(3) == 0,
			shape:  []int{0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 4}[r.IntN(14)],
			ifname: pick(r, []string{"hot0", "hot0", "hot1", "net0", "net1", k.IfName}),
		}
		for _, k := range historyKeys() {
			if r.IntN(8) > 0 {
				o.valid = append(o.valid, k)
			}
		}
		for range []int{0, 0, 0, 1, 1, 2, 3, 3}[r.IntN(8)] {
			if f := randomFault(r, o); f.at != "" && (!parallel || f.kind != "overtake" && !strings.HasPrefix(f.kind, "crash")) {
				o.faults = append(o.faults, f)
			}
		}
		ops[i] = o
	}
	return ops
}

// faultPlaces are where each verb is likely to fail, a call without its plugin.
var faultPlaces = map[string][]string{
	"add":       strings.Fields("ADD ADD ADD ADD DEL DEL DEL DEL find plan adjust report report next"),
	"attach":    strings.Fields("ADD ADD ADD ADD DEL DEL DEL DEL find plan adjust report report next"),
	"reconcile": strings.Fields("ADD ADD ADD DEL DEL DEL DEL find plan start"),
	"del":       strings.Fields("DEL DEL DEL DEL DEL DEL DEL DEL DEL find start"),
	"detach":    strings.Fields("DEL DEL DEL DEL DEL DEL DEL DEL DEL find start"),
	"sweep":     strings.Fields("DEL DEL DEL DEL DEL DEL DEL DEL DEL find start"),
	"check":     strings.Fields("CHECK CHECK CHECK CHECK CHECK find start"),
	"gc":        strings.Fields("DEL DEL DEL DEL DEL GC GC GC GC find start no-list"),
}

// randomFault returns a fault that can happen in o, or none.
func randomFault(r *rand.Rand, o op) mishap {
	if faultPlaces[o.verb] == nil {
		return mishap{}
	}
	f := mishap{at: pick(r, faultPlaces[o.verb]), nth: pick(r, []int{0, 0, 1, 1, 2})}
	kinds := "error error error plain hang cancel crash"
	switch f.at {
	case "start", "no-list":
		f.kind = "cancel"
		return f
	case "find":
		kinds = "crash"
	case "adjust":
		kinds += " spoil"
	case "ADD":
		kinds += " noise silence crash-after overtake"
	case "DEL", "CHECK", "GC":
		kinds += " noise crash-after"
	}
	f.kind = pick(r, strings.Fields(kinds))
	if !slices.Contains(places, f.at) {
		f.at += " " + pick(r, pluginTypes)
	}
	return f
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }
