package lifecycle

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

var (
	modelSeed = flag.Uint64("model.seed", 1, "seed of the first history of TestModel")
	modelOps  = flag.Int("model.ops", 0, "operations of TestModel; 0 means a few thousand")
)

// historyLen is how many operations a history has before everything is deleted.
const historyLen = 50

// Whatever is done to a few containers, whatever fails and wherever it dies,
// what is alive, what is recorded and what is answered is what the model says;
// what is alive is recorded, and deleting everything leaves nothing.
func TestModel(t *testing.T) {
	t.Parallel()
	ops := *modelOps
	if ops == 0 {
		ops = 5_000 // a few seconds; .ci/run asks for more
	}
	base := fastDir(t)
	var next atomic.Uint64
	var failed atomic.Bool
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for !failed.Load() {
				i := next.Add(1) - 1
				if i*historyLen >= uint64(ops) {
					return
				}
				seed := *modelSeed + i
				story := randomOps(rand.New(rand.NewPCG(seed, 0)))
				if replay(t, base, story, 0) != "" && failed.CompareAndSwap(false, true) {
					report(t, base, seed, story)
				}
			}
		})
	}
	all.Wait()
}

// report fails the test with the smallest part of story that still fails.
func report(t *testing.T, base string, seed uint64, story []op) {
	t.Helper()
	small := shrink(story, func(ops []op) bool { return replay(t, base, ops, 0) != "" })
	why := replay(t, base, small, 0)
	t.Errorf("the history of seed %d goes wrong; run go test ./delegate/lifecycle -run '^TestModel$' -model.seed %d -model.ops %d. This is left of it:\n%s\n%s",
		seed, seed, historyLen, stringOf(small), why)
}

// fastDir is a directory in memory, where there is one: each operation waits
// for the disk.
func fastDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "lifecycle-model-") //nolint:usetesting // where that is not
	if err != nil {
		return tb.TempDir()
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// replay does ops with a manager, so many attachments at once, and with the
// model. It returns the first difference between the two, or what is left when
// all has been deleted.
func replay(t *testing.T, base string, ops []op, parallel int) string {
	t.Helper()
	dir, err := os.MkdirTemp(base, "") //nolint:usetesting // there are thousands, and they are in base
	if err != nil {
		return err.Error()
	}
	defer func() { _ = os.RemoveAll(dir) }()
	w, m := newWorld(t, filepath.Join(dir, "state")), newModel()
	w.m.Invoker.Parallel, w.parallel = parallel, parallel
	w.forgotten = func() []piece { return m.forgotten }
	for i, o := range slices.Concat(ops, ending()) {
		want, got := m.do(o), w.do(o)
		if parallel > 1 {
			want, got = unordered(want), unordered(got)
		}
		if got != want {
			return fmt.Sprintf("after %d, %s:\n%s", i+1, o, difference(want, got))
		}
		if lost := m.unrecorded(); len(lost) > 0 {
			return fmt.Sprintf("after %d, %s: alive and not recorded: %q", i+1, o, lost)
		}
	}
	if left := append(w.exec.Live(), files(t, w.dir)...); len(left) > 0 {
		return fmt.Sprintf("left when all is deleted: %q", left)
	}
	return ""
}

// ending are the operations that delete everything.
func ending() []op {
	ops := []op{{verb: "return"}}
	for _, k := range modelKeys() {
		ops = append(ops, op{verb: "forget", key: k}, op{verb: "del", key: k})
	}
	for _, k := range modelKeys() { // a leftover waits for those that have its interface
		ops = append(ops, op{verb: "sweep", key: k})
	}
	return ops
}

// difference shows the lines of want and got that differ.
func difference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	var b strings.Builder
	for _, l := range w {
		if !slices.Contains(g, l) {
			fmt.Fprintf(&b, "  model:   %s\n", l)
		}
	}
	for _, l := range g {
		if !slices.Contains(w, l) {
			fmt.Fprintf(&b, "  manager: %s\n", l)
		}
	}
	if b.Len() == 0 {
		fmt.Fprintf(&b, "  another order, model:\n%s\n  manager:\n%s\n", want, got)
	}
	return b.String()
}

// shrink returns a part of ops that still fails, and that does not any more
// when one operation or one fault is taken from it.
func shrink(ops []op, fails func([]op) bool) []op {
	for size := len(ops) / 2; size > 0; {
		smaller := false
		for i := 0; i+size <= len(ops); {
			if try := slices.Delete(slices.Clone(ops), i, i+size); fails(try) {
				ops, smaller = try, true
			} else {
				i++
			}
		}
		if !smaller || size > len(ops) {
			size /= 2
		}
	}
	for i := range ops {
		for j := 0; j < len(ops[i].faults); {
			try := slices.Clone(ops)
			try[i].faults = slices.Delete(slices.Clone(try[i].faults), j, j+1)
			if fails(try) {
				ops = try
			} else {
				j++
			}
		}
	}
	return ops
}

// The test of the test: a fake that does not do as it is told is found, and
// what is left of the history is what it takes.
func TestModelFindsAndShrinks(t *testing.T) {
	t.Parallel()
	base := fastDir(t)
	for seed := range uint64(100) {
		story := randomOps(rand.New(rand.NewPCG(seed, 1)))
		liar := func(ops []op) bool {
			// One of another mind about a plugin than the model: DEL of tuning fails.
			return replay(t, base, append([]op{{verb: "break", plugin: "tuning"}}, ops...), 0) != ""
		}
		if !liar(story) {
			continue
		}
		small := shrink(story, liar)
		if len(small) != 1 || len(small[0].faults) > 1 {
			t.Errorf("seed %d was shrunk to\n%s", seed, stringOf(small))
		}
		return
	}
	t.Error("nothing was found")
}

// tame returns ops without what depends on the order in which attachments are
// worked on: deaths, ends of contexts, what happens at one call of several, DELs
// that fail to undo an ADD, of which there may be more, and the loss of the last
// of the notes. In exchange the plans are long.
func tame(ops []op) []op {
	ops = slices.Clone(ops)
	for i, o := range ops {
		kinds := []string{"error", "plain", "noise", "silence", "spoil", "no list"}
		ops[i].faults = nil
		for _, f := range o.faults {
			undoing := (o.verb == "add" || o.verb == "attach") && strings.HasPrefix(f.at, "DEL")
			if f.nth = 0; !undoing && slices.Contains(kinds, f.kind) {
				ops[i].faults = append(ops[i].faults, f)
			}
		}
		if o.verb == "tear" {
			ops[i].verb = "damage"
		}
		if o.verb == "add" && o.shape < 2 {
			ops[i].shape = 3
		}
	}
	return ops
}

// unordered returns a description without the calls whose order is not known,
// nor, where an ADD fails, which of them were made.
func unordered(description string) string {
	var b strings.Builder
	for line := range strings.Lines(description) {
		if !strings.HasPrefix(line, "call ADD") && !strings.HasPrefix(line, "call DEL") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// With Invoker.Parallel the answers, what is alive and what is recorded are what
// the model says, which knows nothing of it.
func TestModelParallel(t *testing.T) {
	t.Parallel()
	base := fastDir(t)
	for i := range uint64(*modelOps/historyLen/10 + 40) {
		seed, parallel := *modelSeed+i, []int{2, 8}[i%2]
		story := tame(randomOps(rand.New(rand.NewPCG(seed, 2))))
		fails := func(ops []op) bool { return replay(t, base, ops, parallel) != "" }
		if why := replay(t, base, story, parallel); why != "" {
			small := shrink(story, fails)
			t.Fatalf("the history of seed %d goes wrong with %d at once: %s\nThis is left of it:\n%s\n%s",
				seed, parallel, why, stringOf(small), replay(t, base, small, parallel))
		}
	}
}
