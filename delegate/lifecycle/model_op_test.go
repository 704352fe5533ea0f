package lifecycle

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/metacni/metacni/scratch"
)

// An op is one operation of a history. It does not depend on those before it,
// so that these can be left out.
//
// Beside the verbs of Manager there are: "sweep" of one attachment, "vanish" of a plugin, "return" of all,
// "tries" (from now on Manager.DelTries is shape), "damage" (of the whole file
// of a record) and "tear" (of its last line), and "forget", the operator who
// cleans up after a damaged record, and "reuse": the network namespace of key's
// container becomes another one. What gc is told is valid and has no record
// stands for attachments made before there were records.
type op struct {
	verb   string
	key    scratch.Key // of add, check, del, attach, detach, reconcile, sweep, damage, tear, forget
	shape  int         // which plan, or how to damage
	ifname string      // of detach
	plugin string      // of vanish and return
	valid  []scratch.Key
	nets   bool // whether gc is given a network
	bare   bool // add and attach without Adjust
	next   bool // add and attach with an alternative
	faults []fault
}

func (o op) String() string {
	var b strings.Builder
	b.WriteString(o.verb)
	switch o.verb {
	case "return":
	case "vanish", "break":
		b.WriteString(" " + o.plugin)
	case "gc":
		fmt.Fprintf(&b, " valid %v nets %v", o.valid, o.nets)
	case "detach":
		fmt.Fprintf(&b, " %s %s", o.key, o.ifname)
	case "add", "attach":
		fmt.Fprintf(&b, " %s %s bare %v next %v", o.key, o.plan(), o.bare, o.next)
	default:
		fmt.Fprintf(&b, " %s %d", o.key, o.shape)
	}
	for _, f := range o.faults {
		fmt.Fprintf(&b, "; %s", f)
	}
	return b.String()
}

func stringOf(ops []op) string {
	var b strings.Builder
	for i, o := range ops {
		fmt.Fprintf(&b, "%3d  %s\n", i+1, o)
	}
	return b.String()
}

// A fault is what goes wrong at a place: a call such as "ADD bridge", the
// search for a plugin such as "find bridge", "plan", "next", "adjust" or "report".
//
// Kinds: "error" (with a code), "plain" (without), "noise" and "silence" (on
// stdout), "hang" (until the operation's context ends, which is now), "cancel"
// (the context ends and the call succeeds), "spoil" (adjust leaves no result),
// "crash" (the process dies when the call has begun), "crash-after" (when it
// has ended), "overtake" (a Del comes in, and the call hangs). At "start" the
// context has ended before the operation begins; "nil" is a gc without a list.
type fault struct {
	at, kind string
	nth      int // the only time it happens; 0 is every time
}

func (f fault) String() string {
	if f.nth > 0 {
		return fmt.Sprintf("%s (time %d): %s", f.at, f.nth, f.kind)
	}
	return f.at + ": " + f.kind
}

// code is the code of an "error".
func (f fault) code() uint {
	return 100 + uint(slices.Index(places, f.at)) //nolint:gosec // one of them
}

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

// A plot tells which fault it is now. Model and fake have one each.
type plot struct {
	faults []fault
	seen   []int
}

func newPlot(o op) plot { return plot{o.faults, make([]int, len(o.faults))} }

// at returns the fault at place, if it happens now.
func (s *plot) at(place string) fault {
	var now fault
	for i, f := range s.faults {
		if f.at != place {
			continue
		}
		s.seen[i]++
		if now.kind == "" && (f.nth == 0 || f.nth == s.seen[i]) {
			now = f
		}
	}
	return now
}

// A piece is one attachment of a plan or a record.
type piece struct {
	network string
	plugins []string
	ifname  string
	result  string   // the plugin that printed it
	gone    []string // plugins
	half    bool
	fresh   bool // and never was attached
	ns      int  // which namespace of its container, by number
}

func (l piece) String() string {
	s := fmt.Sprintf("%s%v %s result %q", l.network, l.plugins, l.ifname, l.result)
	if len(l.gone) > 0 {
		s += fmt.Sprintf(" gone %v", l.gone)
	}
	if l.half {
		s += " half"
	}
	return s
}

// left reports whether a plugin of l is not gone.
func (l piece) left() bool { return len(l.gone) < len(l.plugins) }

// without returns l with p gone.
func (l piece) without(p string) piece {
	gone := append(slices.Clone(l.gone), p)
	l.gone = nil
	for _, q := range l.plugins { // in their order
		if slices.Contains(gone, q) {
			l.gone = append(l.gone, q)
		}
	}
	return l
}

// alternative is what o attaches when its plan has failed, and nothing once
// that has.
func (o op) alternative(asked int) []piece {
	if !o.next || asked > 0 {
		return nil
	}
	ifname := "hot1"
	if o.verb == "add" {
		ifname = o.key.IfName
	}
	return []piece{{network: "blue", plugins: []string{"bridge", "ipvlan"}, ifname: ifname}}
}

// plan is what o attaches.
func (o op) plan() []piece {
	own := func(network string, plugins ...string) piece {
		return piece{network: network, plugins: plugins, ifname: o.key.IfName}
	}
	as := func(ifname, network string, plugins ...string) piece {
		return piece{network: network, plugins: plugins, ifname: ifname}
	}
	if o.verb == "add" {
		return [][]piece{
			{own("blue", "bridge", "tuning"), as(second(o.key), "red", "macvlan")},
			{own("blue", "bridge", "tuning")},
			{own("red", "macvlan"), as("hot0", "blue", "bridge")},
			{own("blue", "tuning", "bridge"), as("net0", "red", "macvlan"), as(second(o.key), "green", "ipvlan")},
			{},
		}[o.shape]
	}
	return [][]piece{
		{as("hot0", "green", "ipvlan")},
		{as("hot1", "green", "ipvlan")},
		{as("hot0", "yellow", "ipvlan", "macvlan"), as("hot1", "blue", "bridge")},
		{own("green", "ipvlan")},
		{},
		{as("hot0", "yellow", "ipvlan", "macvlan")},
		{as("hot1", "blue", "bridge")},
	}[o.shape]
}

// wanted are the attachments that o, a "reconcile", wants, as the "step" that attaches
// each. They are those of the interfaces hot0 and hot1: others stay.
func (o op) wanted() []op {
	var all []op
	for _, shape := range [][]int{{0}, {5, 6}, {1}, {6, 0}, {}}[o.shape] {
		all = append(all, op{verb: "step", key: o.key, shape: shape, bare: true})
	}
	return all
}

// reconciledName reports whether the attachment to ifname is one that "reconcile" detaches.
func reconciledName(ifname string) bool { return strings.HasPrefix(ifname, "hot") }

// modelKeys are few, so that they get in each other's way.
func modelKeys() []scratch.Key {
	var ks []scratch.Key
	for c, other := range []string{"eth0", "eth2"} {
		ks = append(ks, key(fmt.Sprint("c", c), "eth0"), key(fmt.Sprint("c", c), "eth1"),
			scratch.Key{Network: "other", ContainerID: fmt.Sprint("c", c), IfName: other})
	}
	return ks // in the order of file names
}

// verbs are drawn as often as they stand here.
var verbs = strings.Fields(strings.Repeat("add ", 14) + strings.Repeat("attach ", 11) + strings.Repeat("del ", 6) +
	strings.Repeat("reconcile ", 7) + strings.Repeat("check detach gc sweep ", 4) + "reuse reuse vanish vanish return return return tries damage tear tear forget forget")

func randomOps(r *rand.Rand) []op {
	ops := make([]op, historyLen)
	k := modelKeys()[0]
	for i := range ops {
		if r.IntN(5) < 2 {
			k = pick(r, modelKeys())
		}
		ops[i] = randomOp(r, k)
	}
	return ops
}

func randomOp(r *rand.Rand, k scratch.Key) op {
	o := op{
		verb: pick(r, verbs), key: k, plugin: pick(r, pluginTypes), nets: r.IntN(3) == 0,
		shape: []int{0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 4}[r.IntN(14)],
	}
	o.bare, o.next = r.IntN(2) == 0, r.IntN(3) == 0
	o.ifname = pick(r, []string{"hot0", "hot0", "hot1", "net0", "net1", k.IfName})
	for _, k := range modelKeys() {
		if r.IntN(8) > 0 {
			o.valid = append(o.valid, k)
		}
	}
	for range []int{0, 0, 0, 1, 1, 2, 3, 3}[r.IntN(8)] {
		if f, ok := randomFault(r, o); ok {
			o.faults = append(o.faults, f)
		}
	}
	if slices.ContainsFunc(o.faults, func(f fault) bool { return f.kind == "overtake" }) {
		// The search for a plugin does not say on whose behalf it is.
		o.faults = slices.DeleteFunc(o.faults, func(f fault) bool { return strings.HasPrefix(f.at, "find") })
	}
	return o
}

// faultPlaces are where each verb is likely to fail, a call without its plugin.
func faultPlaces(verb string) []string {
	switch verb {
	case "add", "attach":
		return strings.Fields("ADD ADD ADD ADD DEL DEL DEL DEL find plan adjust report report next")
	case "reconcile":
		return strings.Fields("ADD ADD ADD DEL DEL DEL DEL find plan start")
	case "del", "detach", "sweep":
		return strings.Fields("DEL DEL DEL DEL DEL DEL DEL DEL DEL find start")
	case "check":
		return strings.Fields("CHECK CHECK CHECK CHECK CHECK find start")
	case "gc":
		return strings.Fields("DEL DEL DEL DEL DEL GC GC GC GC find start nil")
	}
	return nil
}

// randomFault returns a fault that can happen in o.
func randomFault(r *rand.Rand, o op) (fault, bool) {
	at := faultPlaces(o.verb)
	if at == nil {
		return fault{}, false
	}
	f := fault{at: pick(r, at), nth: pick(r, []int{0, 0, 1, 1, 2})}
	kinds := "error error error plain hang cancel crash"
	switch f.at {
	case "start":
		return fault{at: f.at, kind: "cancel"}, true
	case "nil":
		return fault{at: f.at, kind: "no list"}, true
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
	if slices.Contains(places, f.at) {
		return f, true
	}
	ps := pluginTypes
	if plan := o.plan(); len(plan) > 0 && (o.verb == "add" || o.verb == "attach") {
		ps = pick(r, plan).plugins
	}
	f.at += " " + pick(r, ps)
	return f, true
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }
