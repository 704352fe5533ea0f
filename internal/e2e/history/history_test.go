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

	"github.com/metacni/metacni/internal/hosttest"
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
	os.Exit(hosttest.Host{Build: build}.Main(m))
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
	hosttest.Need(t)
	var left atomic.Int64
	left.Store(int64(*count))
	var all sync.WaitGroup
	for i := range 2 * max(2, runtime.GOMAXPROCS(0)) {
		s := *seed + uint64(i)
		n := newNode(t, filepath.Join(hosttest.Programs(), "worker"), s, i%2 == 1, *often)
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
