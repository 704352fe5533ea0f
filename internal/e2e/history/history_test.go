// Package history tests that whatever processes do to the attachments of a container at the
// same time, and whenever one of them dies, their answers are those of some order in which they
// could have taken turns. See README.md.
package history

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/metacni/metacni/delegate/conform/host"
	"github.com/metacni/metacni/internal/mutant"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

var (
	count = flag.Int("ops", 4000, "number of operations of TestHistoriesAreLinearizable")
	seed  = flag.Uint64("seed", 1, "seed of TestHistoriesAreLinearizable")
	often = flag.Int("often", 1, "how many times as often what is rare happens")
)

// perRound is the number of operations of a round.
const perRound = 180

func TestMain(m *testing.M) {
	if spec := os.Getenv(pluginEnv); spec != "" {
		exit(playPlugin(spec))
	}
	if spec := os.Getenv(roleEnv); spec != "" {
		var role, dir, process string
		var often int
		_, err := fmt.Sscan(spec, &role, &dir, &process, &often)
		if play := map[string]func(machine, string, int) error{"worker": playWorker, "daemon": playDaemon}[role]; err == nil {
			err = play(machine(dir), process, often)
		}
		exit(err)
	}
	os.Exit(host.Tests{Build: build}.Main(m))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// build builds this test as the program of the workers. Its steps yield to other processes.
func build(ctx context.Context, dir string) error {
	return buildWorker(ctx, filepath.Join(dir, "worker"))
}

func buildWorker(ctx context.Context, to string, flags ...string) error {
	args := append([]string{"test", "-c", "-tags=metacni_steps", "-trimpath", "-ldflags=-s -w", "-o", to}, flags...)
	if out, err := exec.CommandContext(ctx, "go", append(args, ".")...).CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// In every other node commands go to daemons, which are killed, stopped and replaced. In the
// others the processes that execute commands are killed.
func TestHistoriesAreLinearizable(t *testing.T) {
	t.Parallel()
	host.Need(t)
	var left atomic.Int64
	left.Store(int64(*count))
	var all sync.WaitGroup
	for i := range 2 * max(2, runtime.GOMAXPROCS(0)) {
		s := *seed + uint64(i)
		n := newNode(t, filepath.Join(host.Programs(), "worker"), s, i%2 == 1, *often)
		all.Go(func() {
			for left.Load() > 0 && !t.Failed() {
				before := n.ops
				if wrong := n.round(perRound); wrong != "" {
					t.Errorf("-seed %d, round %d, log %s:\n%s", s, n.rounds, n.keep(s), wrong)
				}
				left.Add(int64(before - n.ops))
			}
		})
	}
	all.Wait()
	t.Logf("%d operations", int64(*count)-left.Load())
}

var mutate = flag.Bool("mutants", false, "run TestEachGuardIsNeeded")

// atMost is how many operations may pass until a missing guard is found.
const atMost = 100000

// A guard is a line that keeps operations apart.
type guard struct {
	name string
	mutant.Mutant
	thick bool // it takes daemons to miss it
}

func guards() []guard {
	return []guard{
		{"a shim looks for the daemon again before it queues a DEL", mutant.Mutant{
			File: "delegate/thick/internal/queue/queue.go", Old: "if there() {", New: "if false {",
		}, true},
		{"the container's lock is exclusive", mutant.Mutant{
			File: "scratch/lock.go", Old: "flock.Try(fd, true)", New: "flock.Try(fd, false)",
		}, false},
		{"a lock counts only while its file is in the directory", mutant.Mutant{
			File: "scratch/lock.go", Old: "if errors.Is(err, fs.ErrNotExist) || err == nil && now.ID != id {", New: "if errors.Is(err, fs.ErrNotExist) || now.ID != id {\n\t\terr = nil\n\t}\n\tif false {",
		}, false},
		{"unlocking releases the lock for children too", mutant.Mutant{
			File: "scratch/lock.go", Old: "l.failed(flock.Unlock(l.fd))", New: "l.failed(nil)",
		}, false},
		{"flock(2) is exclusive", mutant.Mutant{
			File: "internal/flock/flock_linux.go", Old: "how = unix.LOCK_EX", New: "how = unix.LOCK_SH",
		}, false},
		{"the lock of another is not ours", mutant.Mutant{
			File: "internal/flock/flock_linux.go", Old: "return false, nil", New: "return true, nil",
		}, false},
		{"orphans are killed", mutant.Mutant{
			File: "internal/flock/orphans_linux.go", Old: "case fate == gone:", New: "case fate != unsure:",
		}, false},
		{"an operation hands the lock to its plugins", mutant.Mutant{
			File: "delegate/lifecycle/lock.go", Old: "return handing(ctx, l.File(), func(ctx context.Context) error { return do(ctx, l) })", New: "return do(ctx, l)",
		}, false},
		{"plugins inherit the lock", mutant.Mutant{
			File: "delegate/child_linux.go", Old: "files = append(files, f.Fd())", New: "_ = f",
		}, false},
		{"nothing is recorded beside a GC", mutant.Mutant{
			File: "delegate/lifecycle/recorded.go", Old: "\t\tdir, err := m.lockDir(ctx, false)\n\t\tif err != nil {\n\t\t\treturn err\n\t\t}\n\t\tdefer unlockDir(dir)\n", New: "",
		}, false},
		{"a GC has the directory for itself", mutant.Mutant{
			File: "delegate/lifecycle/gc.go", Old: "l, err := m.lockDir(ctx, true)\n", New: "l, err := m.lockDir(ctx, false)\n",
		}, false},
		{"a GC hands the lock to its plugins", mutant.Mutant{
			File: "delegate/lifecycle/gc.go", Old: "handing(ctx, file, func(ctx context.Context) error {", New: "handing(ctx, file, func(context.Context) error {",
		}, false},
		{"nothing is recorded beside a plugin of a GC that was killed", mutant.Mutant{
			File: "delegate/lifecycle/lock.go", Old: "errors.Is(err, fs.ErrNotExist) {", New: "err == nil || errors.Is(err, fs.ErrNotExist) {",
		}, false},
	}
}

// Without any of the guards, a history is found that no order explains, or a plugin that must
// not run.
func TestEachGuardIsNeeded(t *testing.T) {
	for _, g := range guards() {
		_, err := g.Overlay("../../..", t.TempDir())
		nodetest.OK(t, err)
	}
	if !*mutate {
		t.Skip("compiles the SDK many times: -mutants")
	}
	host.Need(t)
	for _, g := range guards() {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			overlay, err := g.Overlay("../../..", dir)
			nodetest.OK(t, err)
			program := filepath.Join(dir, "worker")
			nodetest.OK(t, buildWorker(t.Context(), program, "-overlay", overlay))
			n := newNode(t, program, *seed, g.thick, 8)
			for n.ops < atMost {
				if wrong := n.round(perRound); wrong != "" {
					t.Logf("found after %d operations: %s", n.ops, wrong)
					return
				}
			}
			t.Errorf("not found in %d operations", n.ops)
		})
	}
}
