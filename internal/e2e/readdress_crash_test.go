package e2e

import (
	"fmt"
	"os"
	"slices"
	"testing"
)

// TestKilledDELSparesAnAddressThatHasMoved kills multinet at every step of a DEL and of
// the undo of an ADD in which firewall fails, and before, during and after each plugin.
// If the address is free afterwards, a second container gets it. The next DEL of the first
// container takes nothing from the second: no rule, no address, no interface.
func TestKilledDELSparesAnAddressThatHasMoved(t *testing.T) {
	for _, command := range []string{"DEL", "undo"} {
		for part := range crashParts {
			t.Run(fmt.Sprintf("%s/%d", command, part), func(t *testing.T) {
				w := newWorld(t)
				w.needsRules()
				w.killAndMove(command, part)
			})
		}
	}
}

// killAndMove tests every crashParts'th step from the one with the number part.
func (w *world) killAndMove(command string, part int) {
	w.t.Helper()
	verb := "ADD"
	networks := []object{w.chain(1, w.behind("bridge1", w.single(1)), w.behind("fire1", w.firewall(), "DEL", "fail"))}
	if command == "undo" {
		networks = append(networks, w.fake("z", "ADD", "fail"))
	} else {
		verb = "DEL"
	}
	first := w.published(networks...)
	second := w.published(w.chain(1, w.single(1), w.firewall()))
	before := func() {
		w.t.Helper()
		if err := os.RemoveAll(w.file("state")); err != nil {
			w.t.Fatal(err)
		}
		if command == "DEL" {
			w.ok("ADD", first)
		}
	}
	clean := func() {
		w.t.Helper()
		w.cure()
		w.ok("DEL", first)
		w.gone(first)
		w.sicken()
	}
	before()
	w.failed(w.call(verb, first, w.stepping(first, nil, false)), 111)
	steps := w.steps(first)
	if command == "undo" {
		steps = steps[max(0, slices.Index(steps, step{"ADD z start", 1})):]
	}
	clean()
	has(w.t, steps, "DEL fire1", "DEL bridge1 end")

	trials, moved := 0, 0
	for i, at := range steps {
		if i%crashParts != part || !*long && i/crashParts%4 != part {
			continue
		}
		before()
		w.crash(verb, first, at, at.byFake() && i%2 == 0)
		w.call("CHECK", first) // waits for an orphan
		trials++
		if a := w.call("ADD", second); a.code == 0 {
			second.result = a.stdout
			moved++
			want := w.belongings(second)
			w.cure()
			w.ok("DEL", first)
			same(w.t, "the second's", want, w.belongings(second))
			w.ok("CHECK", second)
			w.ok("DEL", second)
			w.gone(second)
			w.sicken()
		}
		clean()
		if w.t.Failed() {
			w.t.Fatalf("killed at %v", at)
		}
	}
	if moved == 0 && *long {
		w.t.Error("the address was never free")
	}
	w.figures("SIGKILL of multinet at every step of "+command+", then the address moves", trials)
}
