package history

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/thick/shim"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// lockTimeout is how long an operation waits for an orphan before it kills it.
const lockTimeout = 250 * time.Millisecond

// clients is how many operations a worker does at the same time.
const clients = 2

// A round is a short history of new attachments.
type round struct {
	Seed   uint64
	Keys   []string // CONTAINER/INTERFACE
	Ops    int      // of this worker
	Finish bool     // the operations are those of [worker.finish]
	Away   bool     // the operations are those of [worker.away]
	Daemon bool     // commands go to a daemon
}

// keyOf is the key of records for one of [round.Keys].
func keyOf(key string) scratch.Key {
	container, ifname, _ := strings.Cut(key, "/")
	return scratch.Key{Network: "multi", ContainerID: container, IfName: ifname}
}

// A worker is a process that does operations: a runtime with a plugin that uses the SDK, and
// an agent that attaches more networks.
type worker struct {
	machine
	*logbook
	*lifecycle.Manager
	shim *shim.Client
	round
}

// playWorker is the main of a worker. It does a round for each line of its stdin.
func playWorker(m machine, process string, often int) error {
	p, err := newPlugins(m, process)
	if err != nil {
		return err
	}
	p.odds = p.often(often)
	w := &worker{machine: m, logbook: p.log, Manager: p.manager()}
	w.shim = &shim.Client{
		Socket: m.path("daemon", "socket"), Stdout: io.Discard, Wait: time.Second, Timeout: time.Minute,
		Queue: m.path("queue"), QueueWait: -1, Recorded: w.recorded,
	}
	for line := range untilEOF() {
		w.round = round{}
		if err := json.Unmarshal(line, &w.round); err != nil {
			return err
		}
		switch {
		case w.Finish:
			w.finish()
		case w.Away:
			w.away(rand.New(rand.NewPCG(w.Seed, 0)))
		default:
			w.clients(func(r *rand.Rand) { w.work(r, p) })
		}
		fmt.Println("done")
	}
	return nil
}

// untilEOF returns the lines of stdin. At its end, the end of the test, it ends this process,
// whatever that does.
func untilEOF() <-chan []byte {
	lines := make(chan []byte)
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			lines <- bytes.Clone(in.Bytes())
		}
		os.Exit(0)
	}()
	return lines
}

// manager returns a Manager of the records of p's machine.
func (p *plugins) manager() *lifecycle.Manager {
	return &lifecycle.Manager{
		Invoker: &delegate.Invoker{Exec: p, Path: []string{"/history"}}, Dir: p.path("state"), LockTimeout: lockTimeout, InterfaceNames: p.names,
	}
}

// clients calls do for several clients at the same time.
func (w *worker) clients(do func(*rand.Rand)) {
	var all sync.WaitGroup
	for client := range uint64(clients) {
		all.Go(func() { do(rand.New(rand.NewPCG(w.Seed, client))) })
	}
	all.Wait()
}

// work does the operations of one client.
func (w *worker) work(r *rand.Rand, p *plugins) {
	for range w.Ops / clients {
		w.disturb(p)
		w.random(r)
	}
}

// away sends a DEL for a container that nobody knows while the next daemon takes the socket:
// nothing but the daemon's start makes it read the queue.
func (w *worker) away(r *rand.Rand) {
	for free := true; free; runtime.Gosched() {
		lock, err := os.Open(w.path("daemon", "socket.lock"))
		if err != nil {
			continue
		}
		free = syscall.Flock(int(lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil
		_ = lock.Close() // nothing was written
	}
	k := fmt.Sprintf("away%x/eth0", r.Uint64())
	w.do("DEL", k, "", func(id string) string { return w.operate(id, "DEL", k, "") })
}

// disturb asks the test to kill this process while it goes on, or for another daemon.
func (w *worker) disturb(p *plugins) {
	if w.Daemon && p.hits(p.die/4) {
		_ = p.ask(0)
	} else if !w.Daemon && p.hits(p.die) {
		_ = p.ask(p.parent)
	}
}

// verbs are drawn as often as they stand here.
var verbs = strings.Fields("ADD ADD ADD ADD ADD DEL DEL DEL DEL CHECK CHECK ATTACH ATTACH DETACH GC SWEEP")

// random does an operation.
func (w *worker) random(r *rand.Rand) {
	verb, key, arg := verbs[r.IntN(len(verbs))], w.Keys[r.IntN(len(w.Keys))], ""
	switch verb {
	case "ATTACH", "DETACH":
		arg = hotName(key, r.IntN(2))
	case "GC":
		key, arg = "-", w.someValid(r)
	case "SWEEP":
		key = "-"
	}
	w.do(verb, key, arg, func(id string) string { return w.operate(id, verb, key, arg) })
}

// finish attaches everything once more, and removes it. Nothing is in the way any longer except
// orphans.
func (w *worker) finish() {
	for _, verb := range []string{"ADD", "CHECK", "DEL"} {
		for _, k := range w.Keys {
			tries := 0
			for answer := later; answer == later || answer == lost; tries++ {
				if tries == patience {
					w.wrong("%s %s: never succeeds", verb, k)
					return
				}
				w.do(verb, k, "", func(id string) string {
					answer = w.operate(id, verb, k, "")
					return answer
				})
			}
		}
	}
}

// patience is how often an operation may answer that it may succeed later.
const patience = 20

// someValid is a list for GC: some of the keys, mostly recorded ones.
func (w *worker) someValid(r *rand.Rand) string {
	var valid []string
	unrecorded := r.IntN(8) == 0
	for _, k := range w.Keys {
		container, ifname, _ := strings.Cut(k, "/")
		if r.IntN(4) > 0 && (unrecorded || w.there(filepath.Join("state", container+"@multi@"+ifname+".json"))) {
			valid = append(valid, k)
		}
	}
	return strings.Join(valid, ",")
}

// hotName is one of the two interfaces that ATTACH adds.
func hotName(key string, i int) string {
	return fmt.Sprintf("%s-hot%d", key[strings.Index(key, "/")+1:], i)
}

// operate does an operation and returns its answer in the words of the model.
func (w *worker) operate(id, verb, key, arg string) string {
	ctx, k := context.Background(), keyOf(key)
	if w.Daemon && slices.Contains([]string{"ADD", "DEL", "CHECK", "GC"}, verb) {
		return w.ask(ctx, verb, k, arg)
	}
	var err error
	switch verb {
	case "ADD":
		_, err = w.Add(ctx, k, w.transaction(k, primary(k)...))
	case "DEL":
		err = w.Del(ctx, k, lifecycle.DelRequest{})
	case "CHECK":
		err = w.Check(ctx, k, "")
	case "ATTACH":
		_, err = w.Attach(ctx, k, w.transaction(k, network("green", "ipvlan", arg)))
	case "DETACH":
		err = w.Detach(ctx, k, arg)
	case "GC":
		err = w.GC(&watched{Context: ctx, seen: func() { w.say(now(), "begun", id) }}, lifecycle.GCRequest{Network: "multi", Valid: validOf(arg), Networks: []netconf.Network{primary(keyOf("/"))[0].Network}})
	case "SWEEP":
		_, err = (&lifecycle.Sweeper{Manager: w.Manager}).Sweep(ctx)
	}
	return answerOf(err)
}

// watched is a context that calls seen when something is looked up in it for the first time.
// GC does so when it knows which records it is about, and has the first lock.
type watched struct {
	context.Context
	once sync.Once
	seen func()
}

func (c *watched) Value(key any) any {
	c.once.Do(c.seen)
	return c.Context.Value(key)
}

func answerOf(err error) string {
	code := status.Code(err)
	switch {
	case err == nil:
		return done
	case errors.Is(err, lifecycle.ErrAdded):
		return added
	case errors.Is(err, lifecycle.ErrNotAdded):
		return notAdded
	case errors.Is(err, lifecycle.ErrPlan):
		return taken
	case errors.Is(err, delegate.ErrNotUndone):
		return stuck
	case code > 100:
		return failed
	case code == types.ErrTryAgainLater:
		return later
	}
	return strings.ReplaceAll(err.Error(), " ", "_") // which the model does not know
}

// ask sends a command to the daemon. If the daemon dies, the answer is not known.
func (w *worker) ask(ctx context.Context, verb string, k scratch.Key, arg string) string {
	conf := map[string]any{"cniVersion": "1.1.0", "name": k.Network, "type": "history"}
	a := &skel.CmdArgs{ContainerID: k.ContainerID, IfName: k.IfName, Netns: w.path("ns", k.ContainerID), Path: "/history"}
	if verb == "GC" {
		conf["name"], conf["cni.dev/valid-attachments"] = "multi", append([]types.GCAttachment{}, validOf(arg)...)
		a = &skel.CmdArgs{Path: "/history"}
	}
	a.StdinData, _ = json.Marshal(conf) // strings
	err := w.shim.Execute(ctx, verb, a)
	answer := answerOf(err)
	switch code := status.Code(err); {
	case answer == later:
		return lost
	case verb == "ADD" && code == types.ErrInvalidNetworkConfig:
		return added
	case verb == "CHECK" && code == types.ErrInvalidNetworkConfig:
		return notAdded
	case verb == "ADD" && answer == failed:
		return unsure
	case verb == "DEL" && answer == done:
		return queuable
	}
	return answer
}

// recorded is for the shim.
func (w *worker) recorded(ctx context.Context, a *skel.CmdArgs) (at time.Time, known bool) {
	rs, err := w.Container(ctx, a.ContainerID)
	for _, r := range rs {
		if r.Key.IfName == a.IfName {
			at = r.Created
		}
	}
	return at, err == nil
}

// validOf is the list of GC in arg.
func validOf(arg string) []types.GCAttachment {
	valid := []types.GCAttachment{}
	for _, key := range strings.FieldsFunc(arg, func(r rune) bool { return r == ',' }) {
		k := keyOf(key)
		valid = append(valid, types.GCAttachment{ContainerID: k.ContainerID, IfName: k.IfName})
	}
	return valid
}

// network is an attachment to a network of one plugin.
func network(name, plugin, ifname string) delegate.Attachment {
	return delegate.Attachment{Network: nodetest.Network(name, plugin), IfName: ifname}
}

// primary are the networks that an ADD attaches.
func primary(k scratch.Key) []delegate.Attachment {
	return []delegate.Attachment{network("blue", "bridge", k.IfName), network("red", "macvlan", k.IfName+"-net1")}
}

func (w *worker) transaction(k scratch.Key, as ...delegate.Attachment) lifecycle.Transaction {
	netns := w.path("ns", k.ContainerID)
	for i := range as {
		as[i].ContainerID, as[i].NetNS = k.ContainerID, netns
	}
	return lifecycle.Transaction{NetNS: netns, Plan: lifecycle.Plan(as...)}
}
