package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// fakes returns configurations of n delegates.
func (w *world) fakes(n int) (list []object) {
	for i := range n {
		id := fmt.Sprint("f", i)
		list = append(list, w.with(w.fake(id), object{"name": id, "cniVersion": "1.1.0"}))
	}
	return list
}

// TestCostOfCommands limits what a command of multinet costs, in counts that do
// not depend on the machine's speed. The costs must not grow with the number of
// other containers. The limits are the present costs, with a little room for
// the next version of Go.
func TestCostOfCommands(t *testing.T) {
	w := newWorld(t)
	multinet := built(t, "multinet")
	cost := func(when string, n int) {
		p := w.pod(w.multinet("1.1.0", w.fakes(n)...))
		for _, c := range []struct {
			command string
			limit   bill
		}{
			// The record's file and its directory, both before the first plugin
			// runs, and not again afterwards.
			{"ADD", bill{syncs: 2, opens: 18 + n, execs: n}},
			{"CHECK", bill{opens: 11, execs: n}},
			{"STATUS", bill{opens: 7, execs: n}},
			{"DEL", bill{opens: 14 + n, execs: n}},
			{"DEL", bill{opens: 9}},
			{"VERSION", bill{opens: 7}},
		} {
			got := w.traced(multinet, c.command, p)
			t.Logf("figures: %s of %d delegates%s: %d fsyncs, %d files opened, %d directories listed, %d programs run, %d kB",
				c.command, n, when, got.syncs, got.opens, got.scans, got.execs, got.memory)
			if got.syncs > c.limit.syncs || got.opens > c.limit.opens || got.scans > 0 || got.execs != c.limit.execs {
				t.Errorf("%s of %d delegates%s costs %+v, limit %+v; opened:\n%s", c.command, n, when, got, c.limit, strings.Join(got.opened, "\n"))
			}
			if got.memory == 0 || got.memory > 6<<10+512 {
				t.Errorf("%s of %d delegates%s: %d kB resident, limit 6.5 MiB", c.command, n, when, got.memory)
			}
		}
	}
	if err := os.MkdirAll(w.file("state"), 0o700); err != nil { // happens once per machine
		t.Fatal(err)
	}
	for _, n := range []int{1, 2, 8} {
		cost("", n)
	}
	for range 100 {
		w.ok("ADD", w.pod(w.multinet("1.1.0", w.fakes(1)...)))
	}
	cost(", among 100 containers", 1)
}

// TestCostOfStart limits what multinet initializes before main, and the size of
// the program.
func TestCostOfStart(t *testing.T) {
	newWorld(t)
	cmd := exec.CommandContext(t.Context(), built(t, "multinet"))
	cmd.Env = []string{"CNI_COMMAND=VERSION", "GODEBUG=inittrace=1"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	bytes, allocs := 0, 0
	packages := regexp.MustCompile(`(?m)^init (\S+) @.* clock, (\d+) bytes, (\d+) allocs$`).FindAllSubmatch(out, -1)
	for _, p := range packages {
		b, _ := strconv.Atoi(string(p[2]))
		a, _ := strconv.Atoi(string(p[3]))
		bytes, allocs = bytes+b, allocs+a
	}
	t.Logf("figures: %d packages initialised, %d bytes, %d allocations", len(packages), bytes, allocs)
	if len(packages) == 0 || len(packages) > 75 || bytes > 40<<10 || allocs > 260 {
		t.Errorf("%s", out)
	}
	for _, b := range []struct {
		flags string
		limit int64 // bytes
	}{{"", 7_450_000}, {"-s -w", 5_100_000}} {
		file := filepath.Join(t.TempDir(), "multinet")
		build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-trimpath", "-ldflags", b.flags, "-o", file, "./examples/multinet")
		build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("figures: multinet built with -ldflags %q: %d bytes", b.flags, info.Size())
		if info.Size() > b.limit {
			t.Errorf("with -ldflags %q multinet has %d bytes, limit %d", b.flags, info.Size(), b.limit)
		}
	}
}
