package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
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
	for _, k := range historyKeys() { // an ADD that was refused is noted as long as its namespace is there
		_ = os.Remove(w.namespace(k.ContainerID))
		_ = w.Del(t.Context(), k, DelRequest{})
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
	next   bool // add and attach with another plan
	faults []mishap
}

// A mishap is a failure injected at a place: a call such as "ADD bridge", the search for a
// plugin such as "find bridge", "plan", "next" or "report".
//
// Kinds: "error" (with a code), "plain" (without), "noise" and "silence" (on stdout), "hang"
// (until the operation's context ends, which is now), "cancel" (the context ends and the call
// succeeds), "crash" (the process dies when the call has
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
	all := []string{"plan", "report", "next"}
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
			verb: pick(r, verbs), key: k, plugin: pick(r, pluginTypes), nets: r.IntN(3) == 0, next: r.IntN(3) == 0,
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
	"add":       strings.Fields("ADD ADD ADD ADD DEL DEL DEL DEL find plan report report next"),
	"attach":    strings.Fields("ADD ADD ADD ADD DEL DEL DEL DEL find plan report report next"),
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

// A world is a node on which one process after another does the operations of a history.
type world struct {
	*node
	parallel   int // attachments at once
	tries      int // Manager.DelTries
	gone       map[string]bool
	namespaces int                    // made so far
	lost       map[scratch.Key]record // what damaged records were about
	damaged    map[string]bool        // containers of which a record was damaged
	passed     chan error             // from the Del that has overtaken
	end        context.CancelFunc     // ends the context of the operation

	mu    sync.Mutex // guards what follows
	op    op
	hits  []int  // how often the place of each fault was reached
	codes []uint // that the operation may answer
	after bool   // the process dies when the call has ended
	calls []delegatetest.Invocation
	wrong []string
}

func newWorld(t *testing.T, dir string, parallel int) *world {
	t.Helper()
	w := &world{node: nodeAt(t, filepath.Join(dir, "state")), parallel: parallel, gone: make(map[string]bool), lost: make(map[scratch.Key]record), damaged: make(map[string]bool)}
	for name, p := range w.Exec.Plugins {
		w.Exec.Plugins[name] = func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) { return w.plugin(ctx, c, p) }
	}
	nodetest.OK(t, errors.Join(os.Mkdir(w.Dir, 0o700), os.Mkdir(w.Dir+"-ns", 0o700), os.Mkdir(w.Dir+"-files", 0o700)))
	for _, k := range historyKeys() {
		nodetest.OK(t, w.makeNamespace(k.ContainerID))
	}
	w.start()
	return w
}

// start is a new process.
func (w *world) start() {
	w.Manager = &Manager{machine: &fileMachine{}, Dir: w.Dir, Invoker: &delegate.Invoker{Exec: worldExec{w.Exec, w}, Parallel: w.parallel}, DelTries: w.tries}
	w.InterfaceNames = func(netns string) (names []string, _ error) {
		if exists(netns) {
			names = []string{"lo"} // the plugins make none
		}
		return names, nil
	}
}

// namespace is the path of a container's network namespace: here it is a file.
func (w *world) namespace(container string) string { return filepath.Join(w.Dir+"-ns", container) }

// makeNamespace makes another one at the path. What was there is kept, so that no other
// has its inode.
func (w *world) makeNamespace(container string) error {
	path := w.namespace(container)
	w.namespaces++
	if err := os.Rename(path, fmt.Sprint(path, "-", w.namespaces)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.WriteFile(path, nil, 0o600)
}

// worldExec fails and dies when a plugin is looked for, and dies after one has run.
type worldExec struct {
	*delegatetest.Exec
	w *world
}

func (e worldExec) FindInPath(plugin string, paths []string) (string, error) {
	if e.w.fault("find "+plugin).kind == "crash" {
		runtime.Goexit()
	}
	if e.w.gone[plugin] {
		return "", errors.New("vanished")
	}
	return e.Exec.FindInPath(plugin, paths)
}

func (e worldExec) ExecPlugin(ctx context.Context, pluginPath string, stdin []byte, environ []string) ([]byte, error) {
	out, err := e.Exec.ExecPlugin(ctx, pluginPath, stdin, environ)
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if e.w.after {
		e.w.after = false
		runtime.Goexit()
	}
	return out, err
}

// The contexts of an overtaking Del and of what the operator does have these.
type (
	quiet  struct{}
	byHand struct{}
)

// fault returns the fault at place, if it happens now.
func (w *world) fault(place string) (now mishap) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, f := range w.op.faults {
		if f.at != place {
			continue
		}
		if w.hits[i]++; now.kind == "" && (f.nth == 0 || f.nth == w.hits[i]) {
			now = f
		}
	}
	switch now.kind {
	case "error":
		w.codes = append(w.codes, now.code())
	case "noise", "silence":
		w.codes = append(w.codes, 6)
	case "hang", "cancel", "overtake":
		w.codes = append(w.codes, 11, now.code())
	case "plain":
		w.codes = append(w.codes, 999)
	}
	return now
}

// plugin is any of the fakes, with what goes wrong with it.
func (w *world) plugin(ctx context.Context, c delegatetest.Invocation, p delegatetest.Fake) ([]byte, error) {
	if ctx.Value(byHand{}) != nil {
		return p(ctx, c)
	}
	w.mu.Lock()
	w.calls = append(w.calls, c)
	if wrong := w.allows(c); wrong != "" {
		w.wrong = append(w.wrong, fmt.Sprintf("%s of %s: %s", c, c.ContainerID, wrong))
	}
	w.mu.Unlock()
	var f mishap
	if ctx.Value(quiet{}) == nil {
		f = w.fault(c.Command + " " + c.Plugin)
	}
	switch f.kind {
	case "crash-after":
		w.mu.Lock()
		w.after = true
		w.mu.Unlock()
	case "overtake":
		return nil, w.overtake(ctx)
	case "noise":
		return []byte("loading modules\n{"), nil
	case "silence":
		return nil, nil
	}
	if err := w.goesWrong(ctx, f); err != nil {
		return nil, err
	}
	return p(ctx, c)
}

// goesWrong does what f says, which is the same for plugins and hooks.
func (w *world) goesWrong(ctx context.Context, f mishap) error {
	switch f.kind {
	case "error":
		return types.NewError(f.code(), "no", "")
	case "plain":
		return errors.New("no")
	case "crash":
		runtime.Goexit()
	case "cancel", "hang":
		w.end()
	}
	if f.kind != "hang" {
		return nil
	}
	if ctx.Err() == nil { // it undoes, and would hang until its time is up
		return types.NewError(f.code(), "no", "")
	}
	<-ctx.Done()
	return fmt.Errorf("hung: %w", context.Cause(ctx))
}

// errDied means that an overtaking Del has died.
var errDied = errors.New("died")

// overtake is a Del that comes in while the operation runs, and ends it.
func (w *world) overtake(ctx context.Context) error {
	background, m, k := context.WithValue(w.Context(), quiet{}, true), w.Manager, w.op.key
	passed := make(chan error, 1)
	go func() {
		err := errDied
		defer func() { passed <- err }()
		err = m.Del(background, k, DelRequest{})
	}()
	w.passed = passed
	<-ctx.Done()
	return errors.New("signal: killed")
}

// allows returns why the records on disk do not allow a call, or "".
func (w *world) allows(c delegatetest.Invocation) string {
	if c.Command == "GC" {
		return w.allowsGC(c)
	}
	if !lockIsHeld(filepath.Join(w.Dir, c.ContainerID+"@lock")) {
		return "without the lock"
	}
	rs, _ := w.store().Container(w.Context(), c.ContainerID) // without the damaged ones
	for _, r := range rs {
		for _, e := range r.Value.Delegates {
			if e.IfName != c.IfName || !slices.Contains(leftOf(e), c.Plugin) {
				continue
			}
			of := e.state(r.State)
			taken := of == scratch.Leftover && slices.ContainsFunc(rs, func(other scratch.Record[record]) bool {
				return other.Key != r.Key && other.State != scratch.Leftover && slices.ContainsFunc(other.Value.Delegates, func(f entry) bool { return f.IfName == e.IfName })
			})
			switch {
			case c.Command == "ADD" && of == scratch.Planned,
				c.Command == "CHECK" && of == scratch.Added,
				c.Command == "DEL" && of != scratch.Added && !taken: // it may have been told on disk before it is told
				return ""
			}
		}
	}
	return fmt.Sprintf("not in the records %q", describe(rs...))
}

// allowsGC wants the plugin to be told of everything that is attached to its network, and
// of nothing that is not.
func (w *world) allowsGC(c delegatetest.Invocation) string {
	var conf struct {
		Name  string               `json:"name"`
		Valid []types.GCAttachment `json:"cni.dev/valid-attachments"`
	}
	if err := json.Unmarshal(c.Stdin, &conf); err != nil {
		return err.Error()
	}
	allowed := validFor(w.op.valid...)
	for r := range w.store().List(w.Context()) {
		for _, e := range r.Value.Delegates {
			a := types.GCAttachment{ContainerID: r.Key.ContainerID, IfName: e.IfName}
			if allowed = append(allowed, a); e.Network.Name() == conf.Name && r.State.Attached() && !slices.Contains(conf.Valid, a) {
				return fmt.Sprintf("it is not told of %v", a)
			}
		}
	}
	for _, a := range conf.Valid {
		if !slices.Contains(allowed, a) {
			return fmt.Sprintf("it is told of %v", a)
		}
	}
	return ""
}

// leftOf are the plugins of e that have not released it.
func leftOf(e entry) (left []string) {
	for i, p := range e.Network.Plugins() {
		if !slices.Contains(e.Gone, i) {
			left = append(left, p.Type())
		}
	}
	return left
}

func describe(rs ...scratch.Record[record]) (all []string) {
	for _, r := range rs {
		for _, e := range r.Value.Delegates {
			all = append(all, fmt.Sprintf("%s %s: %s of %s %s", r.Key, r.State, e.state(r.State), e.IfName, leftOf(e)))
		}
	}
	return all
}

// lockIsHeld reports whether somebody holds the lock in a file.
func lockIsHeld(name string) bool {
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == syscall.EWOULDBLOCK
}

// do does o and returns what is wrong about it.
func (w *world) do(o op) string {
	ctx, end := context.WithCancel(w.Context())
	defer end()
	w.op, w.hits, w.codes, w.end, w.calls, w.after, w.passed = o, make([]int, len(o.faults)), nil, end, nil, false, nil
	if w.fault("start").kind != "" {
		end()
	}
	before := w.look()
	err, died := error(nil), true
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = w.verb(ctx, o)
		died = false
	}()
	<-ended
	wrong := w.wrong
	if w.passed != nil {
		if delErr := <-w.passed; errors.Is(delErr, errDied) {
			died = true
		} else if delErr != nil && len(w.gone) == 0 {
			wrong = append(wrong, fmt.Sprintf("the Del that overtakes: %v", delErr))
		}
	} else if !died {
		wrong = append(wrong, w.keeps(o, before, w.look(), err, ctx.Err() != nil)...)
	}
	if died {
		w.start()
	}
	return strings.Join(append(wrong, append(w.unrecorded(), w.unfiled()...)...), "\n")
}

func (w *world) verb(ctx context.Context, o op) (err error) {
	switch k := o.key; o.verb {
	case "add":
		_, err = w.Add(ctx, k, w.transaction(ctx, o))
	case "attach":
		_, err = w.Attach(ctx, k, w.transaction(ctx, o))
	case "del":
		err = w.Del(ctx, k, DelRequest{})
	case "check":
		err = w.Check(ctx, k, "")
	case "detach":
		err = w.Detach(ctx, k, o.ifname)
	case "gc":
		c := GCRequest{Network: k.Network, Valid: validFor(o.valid...)}
		if o.nets {
			c.Networks = []netconf.Network{nodetest.Network("blue", "bridge")}
		}
		if w.fault("no-list").kind != "" {
			c.Valid = nil
		}
		err = w.GC(ctx, c)
	case "reconcile":
		_, err = w.Reconcile(ctx, k, w.reconciliation(o))
	case "sweep":
		dead := make(map[scratch.Key]string)
		rs, _ := w.store().Container(ctx, k.ContainerID)
		for _, r := range rs {
			if w.ended(r) {
				dead[r.Key] = namespaces(r.Value.Delegates)
			}
		}
		_, err = (&Sweeper{Manager: w.Manager}).remove(ctx, k, dead, errand{})
	case "vanish":
		w.gone[o.plugin] = true
	case "return":
		clear(w.gone)
	case "reuse":
		err = w.makeNamespace(k.ContainerID)
	case "tries":
		w.tries = o.shape
		w.start()
	case "damage", "tear":
		err = w.damage(o)
	case "forget":
		err = w.forgetDamaged(ctx, k)
	}
	return err
}

// attachments are those of a plan.
func (w *world) attachments(k scratch.Key, plan []string) (as []delegate.Attachment) {
	for _, text := range plan {
		words := strings.Fields(strings.NewReplacer("OWN", k.IfName, "SECOND", second(k)).Replace(text))
		a := in(w.namespace(k.ContainerID), attachment(nodetest.Network(words[0], strings.Split(words[1], "+")...), k.ContainerID, words[2]))
		a.Files = []string{filepath.Join(w.Dir+"-files", a.ContainerID+"@"+a.IfName)}
		as = append(as, a)
	}
	return as
}

func (w *world) transaction(ctx context.Context, o op) Transaction {
	hook := func(ctx context.Context, place string) (mishap, error) {
		f := w.fault(place)
		return f, w.goesWrong(ctx, f)
	}
	tx := Transaction{
		NetNS: w.namespace(o.key.ContainerID),
		Plan: func(_ context.Context, taken []string) ([]delegate.Attachment, error) {
			w.checkTaken(o.key, taken)
			_, err := hook(ctx, "plan")
			return w.attachments(o.key, plans[o.verb][o.shape]), err
		},
		Prepare: prepareFiles,
		Report: func(ctx context.Context, _ []delegate.Attached) error {
			_, err := hook(ctx, "report")
			return err
		},
	}
	if o.next {
		asked := false
		tx.Next = func(ctx context.Context, failed error) ([]delegate.Attachment, error) {
			if failed == nil || !undone(failed) {
				w.wrong = append(w.wrong, fmt.Sprintf("another plan after %v", failed))
			}
			_, err := hook(ctx, "next")
			if asked {
				return nil, err
			}
			asked = true
			return w.attachments(o.key, plans["next of "+o.verb][0]), err
		}
	}
	return tx
}

// checkTaken wants the names in the container's records, and none that are free.
func (w *world) checkTaken(k scratch.Key, taken []string) {
	want := []string{"lo"}
	rs, _ := w.store().Container(w.Context(), k.ContainerID)
	for _, r := range rs {
		for _, e := range r.Value.Delegates {
			if r.State != scratch.Leftover {
				want = append(want, e.IfName)
			}
		}
	}
	if slices.Sort(want); !slices.Equal(want, slices.Sorted(slices.Values(taken))) {
		w.wrong = append(w.wrong, fmt.Sprintf("taken are %q, want %q", taken, want))
	}
}

// reconciliation wants what o says for the interfaces hot0 and hot1. Others stay.
func (w *world) reconciliation(o op) ReconcileRequest {
	return ReconcileRequest{
		Prepare: prepareFiles,
		Recorded: func(a delegate.Attached) (Wanted, bool) {
			return Wanted{Network: a.Network.Name(), IfName: a.IfName}, strings.HasPrefix(a.IfName, "hot")
		},
		Wanted: func(context.Context, AddRecord) (all []Wanted, err error) {
			for _, a := range w.attachments(o.key, plans[o.verb][o.shape]) {
				all = append(all, Wanted{Network: a.Network.Name(), IfName: a.IfName, Plan: func(ctx context.Context, taken []string) (delegate.Attachment, error) {
					if taken != nil {
						w.checkTaken(o.key, taken)
					}
					return a, w.goesWrong(ctx, w.fault("plan"))
				}})
			}
			return all, nil
		},
	}
}

// damage damages the record of o's key, or takes the end of its file away.
func (w *world) damage(o op) error {
	r, err := w.store().Get(o.key)
	if err != nil {
		return nil //nolint:nilerr // there is none, or it is damaged already
	}
	file := w.recordFile(o.key)
	if o.verb == "damage" {
		err = os.WriteFile(file, [][]byte{nil, []byte("{}"), []byte("0123456789abcdef {}\n"), []byte("0"), []byte("null\n")}[o.shape], 0o600)
	} else if info, statErr := os.Stat(file); statErr != nil {
		err = statErr
	} else {
		err = os.Truncate(file, info.Size()*int64(5+o.shape)/10)
	}
	w.damaged[o.key.ContainerID] = true
	if _, getErr := w.store().Get(o.key); errors.Is(getErr, scratch.ErrCorrupt) {
		w.lost[o.key] = r.Value
	}
	return err
}

// forgetDamaged is an operator who knows what the damaged record of k was about.
func (w *world) forgetDamaged(ctx context.Context, k scratch.Key) error {
	if _, err := w.store().Get(k); !errors.Is(err, scratch.ErrCorrupt) {
		return nil // nothing for the operator to do
	}
	for _, e := range slices.Concat(w.lost[k].Delegates, w.lost[k].Leftovers) {
		for _, p := range e.Network.Plugins() {
			env := []string{"CNI_COMMAND=DEL", "CNI_CONTAINERID=" + k.ContainerID, "CNI_IFNAME=" + e.IfName}
			if _, err := w.Exec.ExecPlugin(context.WithValue(ctx, byHand{}, true), "/"+p.Type(), nil, env); err != nil {
				return err
			}
		}
	}
	delete(w.lost, k)
	return w.forget(k)
}

// A view is what is on disk. A damaged record has no State.
type view map[scratch.Key]scratch.Record[record]

func (w *world) look() view {
	all := make(view)
	for r := range w.store().List(w.Context()) {
		r.Updated = time.Time{}
		all[r.Key] = r
	}
	return all
}

// An answered is an operation with its answer, and the record of its key before and after it. The
// record is zero if there is none, and has no State if it is damaged.
type answered struct {
	op
	err   error
	ended bool // the context
	was   scratch.Record[record]
	is    scratch.Record[record]
}

// same reports whether the operation has left its record alone.
func (t answered) same() bool { return reflect.DeepEqual(t.was, t.is) }

// keeps returns which promises o has not kept that has answered err. The records were
// before, and are now.
func (w *world) keeps(o op, before, now view, err error, ended bool) (wrong []string) {
	t := answered{op: o, err: err, ended: ended, was: before[o.key], is: now[o.key]}
	promise := map[string]func(answered) bool{
		"add": w.keepsAdd, "attach": w.keepsAttach, "reconcile": w.keepsReconcile, "detach": w.keepsDetach,
		"del": w.keepsDel, "sweep": w.keepsSweep, "check": w.keepsCheck, "gc": func(t answered) bool { return err != nil || !anyStale(now, t.op) },
	}[o.verb]
	if promise != nil && !promise(t) {
		wrong = append(wrong, fmt.Sprintf("%v: recorded are %q, before %q", err, describe(t.is), describe(t.was)))
	}
	for k, r := range before {
		mine := k == o.key || o.verb == "gc" && stale(k, o)
		if !mine && !reflect.DeepEqual(r, now[k]) {
			wrong = append(wrong, fmt.Sprintf("the record of %s was %q, and is %q", k, describe(r), describe(now[k])))
		}
	}
	if damaged := t.was.Key == o.key && t.was.State == ""; damaged && promise != nil && o.verb != "gc" && (err == nil || len(w.calls) > 0) && !ended {
		wrong = append(wrong, fmt.Sprintf("the record is damaged: %v", err))
	}
	return append(wrong, w.wrongCode(t)...)
}

// ended reports whether the network namespace of r is gone.
func (w *world) ended(r scratch.Record[record]) bool {
	return w.Manager.observe().judge(r.Value.Delegates).Life == Dead
}

func stale(k scratch.Key, o op) bool {
	return k.Network == o.key.Network && !slices.Contains(validFor(o.valid...), types.GCAttachment{ContainerID: k.ContainerID, IfName: k.IfName})
}

func anyStale(now view, o op) bool {
	return slices.ContainsFunc(slices.Collect(maps.Keys(now)), func(k scratch.Key) bool { return stale(k, o) })
}

// wholly are the attachments of r that are completely attached, "network interface".
func wholly(r scratch.Record[record]) (all []string) {
	for _, e := range r.Value.Delegates {
		if e.state(r.State) == scratch.Added {
			all = append(all, e.Network.Name()+" "+e.IfName)
		}
	}
	return all
}

// attaches reports whether the record has what was attached before and one of the plans.
func (w *world) attaches(t answered, before []string) bool {
	return slices.ContainsFunc(slices.Concat(plans[t.verb], plans["next of "+t.verb]), func(plan []string) bool {
		return slices.Equal(slices.Concat(before, w.names(t.key, plan)), wholly(t.is))
	})
}

func (w *world) names(k scratch.Key, plan []string) (all []string) {
	for _, a := range w.attachments(k, plan) {
		all = append(all, a.Network.Name()+" "+a.IfName)
	}
	return all
}

// An ADD attaches all of a plan, or nothing. What it could not undo is a leftover.
func (w *world) keepsAdd(t answered) bool {
	switch {
	case t.err == nil:
		return t.is.State == scratch.Added && w.attaches(t, nil)
	case !undone(t.err):
		return t.is.State == scratch.Leftover
	case t.was.State.Attached() && !w.ended(t.was):
		return t.same()
	case t.is.State == "": // none, or damaged
		return true
	}
	return t.same() || t.is.State == scratch.Leftover || t.was.State != "" && t.is.State == scratch.Deleting
}

func (w *world) keepsAttach(t answered) bool {
	switch {
	case t.err == nil:
		return t.is.State.Attached() && w.attaches(t, wholly(t.was))
	case !undone(t.err):
		return t.is.State == scratch.Partial && slices.Equal(wholly(t.was), wholly(t.is))
	}
	return slices.Equal(wholly(t.was), wholly(t.is))
}

func (w *world) keepsReconcile(t answered) bool {
	hot := func(a string) bool { return strings.Contains(a, " hot") }
	cold := func(a string) bool { return !hot(a) }
	if !slices.Equal(slices.DeleteFunc(wholly(t.was), hot), slices.DeleteFunc(wholly(t.is), hot)) {
		return false
	}
	want, got := w.names(t.key, plans[t.verb][t.shape]), slices.DeleteFunc(wholly(t.is), cold)
	slices.Sort(want)
	slices.Sort(got)
	return t.err != nil || t.is.State == scratch.Added && slices.Equal(want, got)
}

func (w *world) keepsDetach(t answered) bool {
	other := func(r scratch.Record[record]) []string {
		return slices.DeleteFunc(wholly(r), func(a string) bool { return strings.HasSuffix(a, " "+t.ifname) })
	}
	if t.ifname == t.key.IfName {
		return t.err != nil && t.same()
	}
	left := slices.ContainsFunc(t.is.Value.Delegates, func(e entry) bool { return e.IfName == t.ifname })
	return slices.Equal(other(t.was), other(t.is)) && (t.err != nil || !left)
}

// A DEL that has removed everything has removed the record. Otherwise it fails, except for
// a leftover unless it was interrupted, and when it was tried often enough: no interface is there.
func (w *world) keepsDel(t answered) bool {
	switch {
	case t.err != nil:
		return t.was.State == "" || t.is.State != "" && w.triesAll(t)
	case t.is.State == "":
		return true
	}
	spent := w.tries > 0 && t.is.Value.Tries >= w.tries
	return w.triesAll(t) && (spent || t.is.State == scratch.Leftover && !t.ended)
}

// A sweep removes a part of what is attached, if that is half done, and all of the rest.
func (w *world) keepsSweep(t answered) bool {
	if t.was.State.Attached() && !w.ended(t.was) {
		return slices.Equal(wholly(t.was), wholly(t.is)) && (t.err != nil || t.is.State == scratch.Added)
	}
	if t.err == nil {
		return t.is.State == "" || t.is.Value.Refused != nil
	}
	return t.was.State == "" || t.is.State != "" && w.triesAll(t)
}

// triesAll reports whether every plugin was told to release what it had, unless an interface
// may be another attachment's.
func (w *world) triesAll(t answered) bool {
	if t.ended || len(w.usedBeside(w.Context(), t.key)) > 0 {
		return true
	}
	for _, e := range t.was.Value.Delegates {
		for _, p := range leftOf(e) {
			told := func(c delegatetest.Invocation) bool {
				return c.Command == "DEL" && c.Plugin == p && c.IfName == e.IfName
			}
			if !w.gone[p] && !slices.ContainsFunc(w.calls, told) {
				return false
			}
		}
	}
	return true
}

// A CHECK asks every plugin of what is completely attached.
func (w *world) keepsCheck(t answered) bool {
	asked := 0
	for _, e := range t.was.Value.Delegates {
		if e.state(t.was.State) == scratch.Added {
			asked += len(e.Network.Plugins())
		}
	}
	return t.same() && (t.err != nil || t.was.State.Attached() && len(w.calls) == asked)
}

// wrongCode wants the code of what has failed, 7 for what is refused, 5 for a damaged record,
// and 11 for the end of the context, for a GC of containers without a record, and for what is
// kept because its interface is another attachment's by now.
func (w *world) wrongCode(t answered) []string {
	allowed := append(slices.Clone(w.codes), 0, 7)
	if t.ended || slices.Contains([]string{"add", "detach", "reconcile", "sweep", "gc"}, t.verb) {
		allowed = append(allowed, 11)
	}
	if len(w.lost) > 0 {
		allowed = append(allowed, 5)
	}
	if t.verb == "attach" && w.ended(t.was) { // another namespace is at the path
		allowed = append(allowed, 8)
	}
	if code := status.Code(t.err); !slices.Contains(allowed, code) {
		return []string{fmt.Sprintf("the code is %d, want one of %d: %v", code, allowed, t.err)}
	}
	return nil
}

// unrecorded is what is attached and not recorded.
func (w *world) unrecorded() (wrong []string) {
	known := make(map[string]bool)
	know := func(k scratch.Key, r record) {
		for _, e := range slices.Concat(r.Delegates, r.Leftovers) {
			for _, p := range leftOf(e) {
				known[p+" "+k.ContainerID+" "+e.IfName] = true
			}
		}
	}
	for k, r := range w.look() {
		know(k, r.Value)
	}
	for k, r := range w.lost {
		know(k, r)
	}
	for _, a := range w.Exec.Live() {
		if !known[a] {
			wrong = append(wrong, "attached and not recorded: "+a)
		}
	}
	return wrong
}

// unfiled says which files are there without a record, and which attachment has lost its
// own. It says nothing of containers with a record that was damaged.
func (w *world) unfiled() (wrong []string) {
	recorded := make(map[string]bool)
	for k, r := range w.look() {
		for _, e := range slices.Concat(r.Value.Delegates, r.Value.Leftovers) {
			recorded[e.Files[0]] = true
			if r.State == scratch.Added && !w.damaged[k.ContainerID] && !exists(e.Files[0]) && !slices.ContainsFunc(r.Value.Leftovers, func(l entry) bool { return l.IfName == e.IfName }) {
				wrong = append(wrong, "no file of "+e.IfName)
			}
		}
	}
	for _, name := range files(w.TB, w.Dir+"-files") {
		container, _, _ := strings.Cut(name, "@")
		if !recorded[filepath.Join(w.Dir+"-files", name)] && !w.damaged[container] {
			wrong = append(wrong, "no record has the file "+name)
		}
	}
	return wrong
}
