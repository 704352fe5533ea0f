package lifecycle

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// tame returns ops without what depends on the order in which attachments are
// worked on: deaths, ends of contexts, what happens at one call of several, DELs
// that fail to undo an ADD, of which there may be more, or its Undone, and the
// loss of the last of the notes. In exchange the plans are long.
func tame(ops []op) []op {
	ops = slices.Clone(ops)
	for i, o := range ops {
		kinds := []string{"error", "plain", "noise", "silence", "spoil", "no list"}
		ops[i].faults = nil
		for _, f := range o.faults {
			undoing := (o.verb == "add" || o.verb == "attach") && (strings.HasPrefix(f.at, "DEL") || f.at == "undone")
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
