// Package life tests that nothing is taken from a container that lives, and that nothing is left
// of one that is gone, whatever containers, runtimes, agents and operators do. See README.md.
package life

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate/conform/host"
	"github.com/metacni/metacni/internal/mutant"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
)

var (
	seed    = flag.Uint64("seed", 1, "seed of the first history; each further one has the next")
	length  = flag.Int("steps", 40, "number of actions of a history")
	during  = flag.Duration("for", 10*time.Second, "begin histories for so long")
	without = flag.String("without", "$^", "leave out the actions that match this `REGEXP`, to look for what else is wrong")
	replay  = flag.String("replay", "", "play the runbook in this `FILE` alone, and print what its commands answer")
)

// roleEnv makes this program a part of a node: "play", "hold KIND", "agent" or "elsewhere PLACE".
const roleEnv = "METACNI_LIFE"

func TestMain(m *testing.M) {
	if role := strings.Fields(os.Getenv(roleEnv)); len(role) > 0 {
		runtime.LockOSThread() // see host.Command
		err := map[string]func([]string) error{
			"play": playHere, "hold": keepNamespace, "agent": keepOpen, "elsewhere": goElsewhere,
		}[role[0]](role[1:])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(host.Tests{Needs: needs, Build: build}.Main(m))
}

// path is where the plugins find iptables.
const path = "/usr/sbin:/usr/bin:/sbin:/bin"

// needs returns an error unless this process can prove death, and make rules.
func needs(ctx context.Context) error {
	users, err := os.ReadFile("/proc/self/uid_map")
	if err != nil || os.Geteuid() != 0 || strings.Join(strings.Fields(string(users)), " ") != "0 0 4294967295" {
		return errors.New("needs root of the initial user namespace, because nobody else can prove that a container is dead")
	}
	probe := host.Command(ctx, "/usr/bin/env", "PATH="+path, "iptables", "-N", "PROBE")
	if out, err := probe.CombinedOutput(); err != nil {
		return fmt.Errorf("needs iptables: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// build builds multinet, which can be killed at each of its steps, and the plugins.
func build(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // others run multinet, too
		return err
	}
	var packages []string
	for _, p := range []string{"ipam/host-local", "main/bridge", "meta/firewall"} {
		packages = append(packages, "github.com/containernetworking/plugins/plugins/"+p)
	}
	return errors.Join(goBuild(ctx, "..", dir, packages...), goBuild(ctx, "../../..", dir, "./internal/test/process/fake"), buildMultinet(ctx, dir))
}

// buildMultinet builds multinet, its daemon and its shim.
func buildMultinet(ctx context.Context, dir string, flags ...string) error {
	flags = append(flags, "-tags=metacni_steps")
	return goBuild(ctx, "../../../examples/multinet", dir, append(flags, "./cmd/...")...)
}

func goBuild(ctx context.Context, module, dir string, args ...string) error {
	return process.Build{Env: []string{"CGO_ENABLED=0"}, Args: args}.Run(ctx, module, dir)
}

// An outcome is how a history has ended.
type outcome struct {
	Wrong  string         // what is wrong, as KIND: TEXT; empty if nothing is
	At     int            // after which line of the runbook
	Counts map[string]int // of what was done and looked at
	broken error          // the harness failed
	said   string         // by the commands
}

func (o outcome) kind() string {
	kind, _, _ := strings.Cut(o.Wrong, ":")
	return kind
}

// play plays a runbook on a node of its own, with the programs in the directory bin.
func play(ctx context.Context, bin string, runbook []string) (o outcome) {
	var out, said bytes.Buffer
	cmd := host.Command(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"=play "+bin)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(strings.Join(runbook, "\n")), &out, &said
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // see host.Command
		defer runtime.UnlockOSThread()
		done <- cmd.Run()
	}()
	err := <-done
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &o)
	}
	if err != nil {
		o.broken = fmt.Errorf("%w\n%s%s", err, out.Bytes(), said.Bytes())
	}
	o.said = said.String()
	if *replay != "" {
		_, _ = os.Stderr.Write(said.Bytes())
	}
	return o
}

// playHere plays the runbook on stdin in this process, which is a new private host.
func playHere(args []string) error {
	if err := host.Setup(); err != nil {
		return err
	}
	n, err := newNode(args[0])
	if err != nil {
		return err
	}
	defer n.close()
	o, err := n.play(os.Stdin)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(o)
}

// In every history each address in a living container is leased to it and has its rules. Each
// lease and rule belongs to a container that lives, or to a record. A DEL that succeeds leaves
// nothing, and at the end nothing is left of any container.
func TestLivingAreSpared(t *testing.T) {
	host.Need(t)
	if *replay != "" {
		text, err := os.ReadFile(*replay)
		nodetest.OK(t, err)
		o := play(t.Context(), host.Programs(), lines(string(text)))
		if o.broken != nil || o.Wrong != "" {
			t.Errorf("after line %d: %s %v", o.At, o.Wrong, o.broken)
		}
		return
	}
	leftOut := regexp.MustCompile(*without)
	var (
		next, played atomic.Uint64
		all          sync.WaitGroup
		mu           sync.Mutex
		counts       = make(map[string]int)
		end          = time.Now().Add(*during)
	)
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for !t.Failed() && (played.Load() == 0 || time.Now().Before(end)) {
				s := *seed + next.Add(1) - 1
				runbook := slices.DeleteFunc(generate(s, *length), leftOut.MatchString)
				o := play(t.Context(), host.Programs(), runbook)
				played.Add(1)
				mu.Lock()
				for what, n := range o.Counts {
					counts[what] += n
				}
				mu.Unlock()
				if o.broken != nil {
					t.Errorf("-seed %d: %v", s, o.broken)
				} else if o.Wrong != "" {
					short, wrong := shrink(t.Context(), host.Programs(), runbook, o)
					t.Errorf("-seed %d -steps %d: %s\nIn short, for -replay FILE:\n%s\n%s", s, *length, o.Wrong, strings.Join(short, "\n"), wrong)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d histories", played.Load())
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%8d %s", counts[what], what)
	}
	for _, what := range []string{"add succeeded", "del succeeded", "addresses compared", "rules compared"} {
		if counts[what] == 0 && !t.Failed() {
			t.Errorf("no %s", what)
		}
	}
}

var mutate = flag.Bool("mutants", false, "run TestEachLineOfTheJudgementIsNeeded")

// enough is how many runbooks may pass until a missing line is found.
const enough = 400

// A line decides about life.
type line struct {
	name  string
	cells []string // choices of the cells in which it matters, if histories seldom have them
	mutant.Mutant
}

// runbooks returns what is played without the line: the cells in which it matters, or histories and
// cells in turns.
func (l line) runbooks() (all [][]string) {
	for i, c := range slices.DeleteFunc(cells(*seed), func(c cell) bool { return !c.has(l.cells...) }) {
		if l.cells == nil {
			all = append(all, generate(*seed+uint64(2*i), *length))
		}
		book, _ := c.runbook()
		all = append(all, book)
	}
	return all[:min(enough, len(all))]
}

// judgement lists the lines that decide about life. Each file has its Old once.
func judgement() []line {
	return []line{
		{"only a path that leads to the namespace counts", nil, mutant.Mutant{
			File: "delegate/lifecycle/life.go", Old: `if path != "" && n.compare(o.look(path), o.boot()) == same {`, New: `if path != "" {`,
		}},
		{"a plugin gets no other namespace", nil, mutant.Mutant{
			File: "delegate/lifecycle/life.go", Old: `	path := o.path(n)
	if n.Inode == 0 {
		path = o.given
	}
`, New: `	path := o.given
	if path == "" {
		path = n.Path
	}
`,
		}},
		{"the kernel's word counts only with the right to know", nil, mutant.Mutant{
			File: "delegate/lifecycle/machine_linux.go", Old: `&& n.in(k.boot()) && may(unix.CAP_SYS_ADMIN):`, New: `&& n.in(k.boot()):`,
		}},
		{"a scan that does not see everything proves nothing", nil, mutant.Mutant{
			File: "delegate/lifecycle/life.go", Old: `if seen.unseen != "" {`, New: `if false {`,
		}},
		{"a scan sees threads", []string{"scanned", "thread", "is deleted"}, mutant.Mutant{
			File: "delegate/lifecycle/scan_linux.go", Old: `				s.hit(inode, thread+"/ns/net")
`, New: ``,
		}},
		{"a scan sees mounts", []string{"scanned", "mount", "is deleted"}, mutant.Mutant{
			File: "delegate/lifecycle/scan_linux.go", Old: `s.add(m.inode, identity(m.fd))`, New: ``,
		}},
		{"a scan sees descriptors", []string{"scanned", "descriptor", "is deleted"}, mutant.Mutant{
			File: "delegate/lifecycle/descriptors_linux.go", Old: `				s.hit(inode, path)
`, New: `				_ = inode
`,
		}},
		{"a scan sees sockets", []string{"scanned", "socket", "is deleted"}, mutant.Mutant{
			File: "delegate/lifecycle/descriptors_linux.go", Old: `				s.readSocket(here, pid, tid, fd)
`, New: ``,
		}},
		{"a sweep removes only what is dead", nil, mutant.Mutant{
			File: "delegate/lifecycle/sweep.go", Old: `if r := attached[i]; j.Life == Dead ||`, New: `if r := attached[i]; j.Life != Alive ||`,
		}},
		{"an ADD takes only the dead for removed", nil, mutant.Mutant{
			File: "delegate/lifecycle/clear.go", Old: `o.judge(r.Value.Delegates).Life != Dead`, New: `o.judge(r.Value.Delegates).Life == Alive`,
		}},
		{"an ADD of another namespace removes nothing that lives", nil, mutant.Mutant{
			File: "delegate/lifecycle/clear.go", Old: `if r.State.Attached() && `, New: `if r.State.Attached() && !o.elsewhere(r.Value.Delegates) && `,
		}},
		{"an address of another attachment is not ours", []string{"DEL", "is half removed, and another has its address", "second"}, mutant.Mutant{
			File: "delegate/lifecycle/owners.go", Old: `return o.network == a.Network.Name() && o.address == ip && (!o.static || !static)`, New: `return false && static`,
		}},
		{"the record of a network that is configured is another attachment", nil, mutant.Mutant{
			File: "delegate/lifecycle/lookup.go", Old: `case known && !configured, `, New: `case known || configured, `,
		}},
	}
}

// Without any of these lines a history or a cell of the cross is found in which something is taken
// from a container that lives, or is left of one that is gone.
func TestEachLineOfTheJudgementIsNeeded(t *testing.T) {
	for _, l := range judgement() {
		_, err := l.Overlay("../../..", t.TempDir())
		nodetest.OK(t, err)
	}
	if !*mutate {
		t.Skip("compiles multinet many times: -mutants")
	}
	host.Need(t)
	for _, l := range judgement() {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			overlay, err := l.Overlay("../../..", dir)
			nodetest.OK(t, err)
			bin := filepath.Join(dir, "bin")
			nodetest.OK(t, os.Mkdir(bin, 0o755))
			for _, program := range []string{"bridge", "host-local", "firewall", "fake"} {
				nodetest.OK(t, os.Symlink(filepath.Join(host.Programs(), program), filepath.Join(bin, program)))
			}
			nodetest.OK(t, buildMultinet(t.Context(), bin, "-overlay", overlay))
			all := l.runbooks()
			for i, runbook := range all {
				o := play(t.Context(), bin, runbook)
				nodetest.OK(t, o.broken)
				if o.Wrong == "" {
					continue
				}
				t.Logf("found in the %d. runbook: %s", i+1, o.Wrong)
				if with := play(t.Context(), host.Programs(), runbook); with.broken != nil || with.Wrong != "" {
					t.Errorf("with the line too: %s %v\n%s", with.Wrong, with.broken, strings.Join(runbook, "\n"))
				}
				return
			}
			t.Errorf("not found in %d runbooks", len(all))
		})
	}
}
