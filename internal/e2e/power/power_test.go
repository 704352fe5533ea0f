package power

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/conform/host"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

var (
	seed    = flag.Uint64("seed", 1, "seed of the random subsets")
	subsets = flag.Int("subsets", 30, "random subsets of the writes that are not flushed, for each moment")
)

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		os.Exit(child(text))
	}
	os.Exit(host.Tests{Needs: needs, Build: func(context.Context, string) error { return nil }}.Main(m))
}

// needs says what is missing.
func needs(context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("needs root, for loop devices")
	}
	for _, path := range []string{"/dev/fuse", "/dev/loop-control"} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("needs FUSE and loop devices: %w", err)
		}
	}
	return nil
}

// has reports whether the promises of s can be kept.
func (fs fileSystem) has(s scenario) bool { return s.grows || fs.repair == nil }

func fileSystemOf(name string) fileSystem {
	all := fileSystems()
	return all[slices.IndexFunc(all, func(fs fileSystem) bool { return fs.name == name })]
}

// A fileSystem is how to make one, and to mount it after a crash.
type fileSystem struct {
	name, kind, options string
	size                int64
	mkfs                []string
	repair              []string // before it is mounted after a crash; it has no journal
}

func fileSystems() []fileSystem {
	return []fileSystem{
		{"ext4", "ext4", "commit=900", 8 << 20, []string{"mkfs.ext4", "-q", "-F"}, nil},
		{"ext4 without a journal", "ext4", "", 8 << 20, []string{"mkfs.ext4", "-q", "-F", "-O", "^has_journal"}, []string{"e2fsck", "-f", "-y"}},
		{"xfs", "xfs", "nouuid", 300 << 20, []string{"mkfs.xfs", "-q", "-f"}, nil},
		{"btrfs", "btrfs", "", 128 << 20, []string{"mkfs.btrfs", "-q", "-f"}, nil},
	}
}

// Whatever a loss of power leaves of what a scenario writes, its promises hold.
func TestPromisesHoldAfterALossOfPower(t *testing.T) {
	host.Need(t)
	var all atomic.Int64
	t.Run("on", func(t *testing.T) {
		for _, fs := range fileSystems() {
			for _, s := range scenarios() {
				if !fs.has(s) {
					continue
				}
				t.Run(fs.name+"/"+s.name, func(t *testing.T) {
					t.Parallel()
					h := newHistory(t, fs, s, "/proc/self/exe")
					crashes, lost := h.crash(1)
					for _, l := range lost {
						t.Errorf("seed %d: %s", *seed, l)
					}
					t.Logf("%d writes and flushes, %d promises, %d crashes", h.disk.Position(), len(h.promises), crashes)
					all.Add(int64(crashes))
				})
			}
		}
	})
	t.Logf("%d crashes", all.Load())
}

// A history is what a scenario has done on a disk.
type history struct {
	testing.TB
	fileSystem
	scenario
	dir, temp     string
	disk, crashed *Disk
	promises      []promise
}

type promise struct {
	text string
	at   int // position in the log of disk
}

// newHistory runs the scenario in a process of that program, on a new file system.
func newHistory(tb testing.TB, fs fileSystem, s scenario, program string) *history {
	tb.Helper()
	if _, err := exec.LookPath(fs.mkfs[0]); err != nil {
		tb.Skipf("not run: %v", err)
	}
	h := &history{TB: tb, fileSystem: fs, scenario: s, dir: tb.TempDir(), temp: nodetest.ShortDir(tb), disk: NewDisk(fs.size), crashed: NewDisk(fs.size)}
	for _, dir := range []string{"fuse", "mnt"} {
		nodetest.OK(tb, os.Mkdir(filepath.Join(h.dir, dir), 0o700))
	}
	stop, err := Serve(filepath.Join(h.dir, "fuse"), h.disk, h.crashed)
	nodetest.OK(tb, err)
	tb.Cleanup(func() { nodetest.OK(tb, stop()) })
	nodetest.OK(tb, start(tb.Context(), program, worker, h.dir, h.temp, fs, s, func(line string) (string, bool) {
		if line == begin {
			h.disk.Begin()
		} else {
			h.promises = append(h.promises, promise{line, h.disk.Position()})
		}
		return "", true
	}))
	return h
}

// crash shows a reader what crashes leave, until the promises do not hold after some of them.
func (h *history) crash(some int) (crashes int, lost []string) {
	h.Helper()
	moments, made := h.moments()
	next, stop := iter.Pull(h.disk.Crashes(moments, rand.New(rand.NewPCG(*seed, 0)), *subsets)) //nolint:gosec // a failure must be repeatable
	defer stop()
	var c Crash
	nodetest.OK(h, start(h.Context(), "/proc/self/exe", reader, h.dir, h.temp, h.fileSystem, h.scenario, func(line string) (string, bool) {
		if line != "" {
			lost = append(lost, fmt.Sprintf("%v, after %q: %s", c, made[c.Moment], line))
		}
		var more bool
		if c, more = next(); !more || len(lost) == some {
			return "", false
		}
		crashes++
		c.Show(h.crashed)
		text, err := json.Marshal(made[c.Moment])
		nodetest.OK(h, err)
		return string(text), true
	}))
	return crashes, lost
}

// moments returns the positions at which power is lost, in order, and the promises made by
// then: after each promise, and before each flush.
func (h *history) moments() (at []int, made [][]string) {
	said := []string{}
	for _, flush := range append(h.disk.Flushes(), h.disk.Position()) {
		for len(said) < len(h.promises) && h.promises[len(said)].at <= flush {
			at = append(at, h.promises[len(said)].at)
			said = append(said, h.promises[len(said)].text)
			made = append(made, slices.Clone(said))
		}
		at, made = append(at, flush), append(made, slices.Clone(said))
	}
	return at, made
}

// A scenario is what a program does on the disk, and what it can rely on after a crash.
type scenario struct {
	name string
	// grows says that it only makes files. Without a journal, a file that is replaced or
	// removed may be lost with what comes in its place.
	grows bool
	// run makes promises: what is true from that moment on, also after a loss of power.
	run func(w *work) error
	// holds looks at what is left.
	holds func(l *left) error
}

func scenarios() []scenario {
	return []scenario{
		{"records", true, add, recordsHold},
		{"changed records", false, attachAndDelete, recordsHold},
		{"leftovers", false, failToUndo, recordsHold},
		{"adoption", false, adoptAndGiveBack, adoptionsHold},
		{"claims", false, keepClaims, claimsHold},
		{"queue", false, queueAndReplay, queueHolds},
		{"reservations", true, reserveTypes, reservationsHold},
		{"configuration", false, publishConfiguration, configurationHolds},
		{"program", false, installPrograms, programHolds},
	}
}

func scenarioOf(name string) scenario {
	all := scenarios()
	return all[slices.IndexFunc(all, func(s scenario) bool { return s.name == name })]
}

// work is what a scenario runs in.
type work struct {
	context.Context
	*rig
	dir string // on the disk
}

// path returns the path of a file on the disk.
func (w *work) path(name string) string { return filepath.Join(w.dir, name) }

// sync makes all that is on the disk survive.
func (w *work) sync() error { return syncAll(w.dir) }

func syncAll(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}

// promise says that something is true from now on, and waits until that is noted.
func (w *work) promise(format string, a ...any) { w.ask(fmt.Sprintf(format, a...)) }

// left is the disk after a crash.
type left struct {
	context.Context
	dir  string
	temp string // the rig's

	made []string
}

func (l *left) path(name string) string { return filepath.Join(l.dir, name) }

// promised returns what promises of that kind were about.
func (l *left) promised(kind string) []string {
	var all []string
	for _, p := range l.made {
		if what, ok := strings.CutPrefix(p, kind+" "); ok {
			all = append(all, what)
		}
	}
	return all
}

// current fails unless content is the version that was promised last, of versions in order, or
// the next.
func (l *left) current(kind, content string, versions ...string) error {
	last := len(l.promised(kind))
	if slices.Contains(versions[last:min(last+2, len(versions))], content) {
		return nil
	}
	return fmt.Errorf("after version %d: neither this nor the next: %q", last, content)
}

// read returns the content of a file, or "" if there is none.
func (l *left) read(name string) (string, error) {
	data, err := os.ReadFile(l.path(name))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return string(data), err
}
