package life

import (
	"cmp"
	"flag"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/conform/host"
	"github.com/metacni/metacni/internal/test/process"
)

var cross = flag.String("cross", "20", "play so many cells of the cross, of which the first have all pairs, or `all`")

// The cross has a short runbook for each combination of a command, the path at the ADD and what
// became of it, what became of the interface, and how multinet asks for a namespace. The other
// choices take turns.
//
// What the runbook cannot say is shown elsewhere:
//
//	hot-plug, reconcile   TestReconcileChangesNothingInDoubt in examples/multinet/plugin,
//	                      TestReconcileAttachesAndDetachesWhatDiffers in delegate/lifecycle
//	NRI                   TestPodStoppedBeforeItIsReconciled in examples/nri
//	replay                TestReplayReportsEveryFailure in delegate/thick/internal/queue
//	claims                TestAClaimIsReleasedWhenNoRecordHasIt in examples/multinet/daemon,
//	                      TestAClaimStaysWhileARecordCannotBeRead in delegate/kube/dra
//
// These cells cannot be:
//
//	adopt, clash on a node without multinet            both need multinet on eth0
//	CHECK of what never was there                      no runtime does that
//	adopt, clash, uninstall by a daemon                tools do not ask the daemon
//	kill of an ADD of a daemon                         TestDaemonKilledAtEveryStepLosesNothing in internal/e2e
//	kill of an ADD that is adopted                     without multinet nothing is killed
//	swap with an interface that the command attaches   there is nothing to swap with
//	anything but the name of a container that is gone  all its names go
//	the path of a holder, or of an agent, of another   a test cannot choose a process ID

// commands are the commands and the tools. IF is the interface, OTHER the other one, NET its
// network, and BY a path that leads to the namespace now.
var commands = []choice{
	{"ADD again", "add c1 IF BY"},
	{"ADD of the other interface", "add c1 OTHER BY"},
	{"ADD of another network", "clash c1"},
	{"DEL", "del c1 IF path"},
	{"DEL without a path", "del c1 IF nothing"},
	{"CHECK", "check c1 IF"},
	{"GC", "gc NET living"},
	{"GC of others", "gc NET c2"},
	{"GC that keeps all", "gc NET all"},
	{"sweep", "sweep here"},
	{"sweep without names", "sweep mount"},
	{"sweep in a PID namespace", "sweep pid"},
	{"sweep in a user namespace", "sweep user"},
	{"sweep as nobody", "sweep nobody"},
	{"sweep without CAP_SYS_ADMIN", "sweep uncapped"},
	{"two sweeps", "sweep here; sweep here"},
	{"two sweeps without names", "sweep mount; sweep mount"},
	{"adopt", "adopt"},
	{"install", "install"},
	{"uninstall --leave", "uninstall leave"},
	{"uninstall --detach", "uninstall detach"},
	{"forget", "forget c1"},
	{"doctor", "doctor"},
	{"list", "list"},
}

// paths are the paths at the ADD, and what became of them.
var paths = []choice{
	{"a name", "name"},
	{"a name that is gone", "name: unname c1"},
	{"a name that another has", "name: unname c1; start c3 process c1; add c3 eth1 name"},
	{"a link", "link"},
	{"a link to nothing", "link: unname c1"},
	{"a link to another", "link: unname c1; start c3 process c1; add c3 eth1 name"},
	{"the holder's path", "holder"},
	{"the path of a holder that is gone", "holder: unname c1; handover c1"},
	{"the agent's path", "agent"},
	{"the path of an agent that is gone", "agent: unname c1; agent c1"},
}

// fates are what became of the interface.
var fates = []choice{
	{"is there", ""},
	{"is renamed", "rename c1 IF"},
	{"is moved", "move c1 IF"},
	{"is deleted", "delete c1 IF"},
	{"is replaced", "recreate c1 IF"},
	{"has another name too", "altname c1 IF"},
	{"is swapped", "swap c1 eth0 eth1"},
	{"never was there", ""},
	{"has an ADD that was killed", ""},
	{"is gone with its container", "end c1"},
	{"is half removed, and another has its address", "reuse; plugin fails; disk read-only; del c1 IF path; disk mended; plugin works; start c4 process; add c4 IF name"},
}

// Further choices. The first two are a part of the cross.
var (
	ways    = []choice{{"asked", ""}, {"scanned", "scan"}, {"asked by a daemon", "daemon"}, {"scanned by a daemon", "scan; daemon"}}
	made    = []choice{{"installed", "eth0"}, {"adopted", "eth0"}, {"second", "eth1"}}
	keepers = []choice{{"process", ""}, {"thread", ""}, {"descriptor", ""}, {"mount", ""}, {"socket", ""}}
	ends    = []choice{{"then swept", ""}, {"then removed", ""}}
)

// A choice is named in words, and has a part of a runbook.
type choice struct{ name, text string }

// A cell has an index of each of the factors.
type cell [7]int

var factors = [7][]choice{commands, paths, fates, ways, made, keepers, ends}

func (c cell) name() string {
	var words []string
	for i, f := range factors {
		words = append(words, f[c[i]].name)
	}
	return strings.Join(words, ", ")
}

// has reports whether a cell has these choices, by their names.
func (c cell) has(choices ...string) bool {
	for i, f := range factors {
		choices = slices.DeleteFunc(slices.Clone(choices), func(name string) bool { return name == f[c[i]].name })
	}
	return len(choices) == 0
}

// runbook returns the runbook of a cell, and false for a cell that cannot be.
func (c cell) runbook() (book []string, ok bool) {
	command, fate, how, keeper := commands[c[0]].text, fates[c[2]].name, made[c[4]], keepers[c[5]].name
	by, gone, isGone := strings.Cut(paths[c[1]].text, ": ")
	ended, never, killed := fate == "is gone with its container", fate == "never was there", fate == "has an ADD that was killed"
	other, ifname := map[string]string{"eth0": "eth1", "eth1": "eth0"}[how.text], how.text
	late, thick := strings.Contains(command, "OTHER"), strings.Contains(ways[c[3]].text, "daemon")
	switch {
	case how.name == "second" && (command == "adopt" || command == "clash c1" || strings.HasPrefix(command, "uninstall")):
		return nil, false
	case never && (strings.HasPrefix(command, "check") || how.name == "adopted"),
		killed && how.name == "adopted",
		late && fate == "is swapped",
		ended && (isGone || strings.HasPrefix(command, "add") || command == "clash c1"),
		thick && (killed || how.name != "second"),
		by == "holder" && keeper == "socket":
		return nil, false
	}
	say := func(lines ...string) {
		for _, l := range lines {
			for l := range strings.SplitSeq(l, "; ") {
				if l != "" {
					book = append(book, l)
				}
			}
		}
	}
	say(ways[c[3]].text)
	if how.name == "installed" {
		say("install")
	}
	one, two := "start c1 "+keeper, "start c2 process"
	if ends[c[6]].name == "then removed" { // every second container is
		one, two = two, one
	}
	say(one, two, "add c2 eth1 name")
	if !late {
		say("add c1 " + other + " " + by)
	}
	switch {
	case killed:
		say("add c1 " + ifname + " " + by + " kill 1 ADD fake middle")
	case !never:
		say("add c1 " + ifname + " " + by)
	}
	if how.name == "adopted" {
		say("install")
	}
	if !never && !killed || fate == "is swapped" {
		say(fates[c[2]].text)
	}
	say(gone)
	if isGone {
		by = "agent"
	}
	network := map[string]string{"eth0": "mna", "eth1": "mnb"}[ifname]
	say(command)
	for i := range book {
		book[i] = strings.NewReplacer("IF", ifname, "OTHER", other, "NET", network, "BY", by).Replace(book[i])
	}
	return book, true
}

// cells returns all cells. Each combination of a command, a path, a fate and a way is there with
// one choice of the rest. The order is that of the seed, but the first cells have all pairs.
func cells(seed uint64) (order []cell) {
	random := rand.New(rand.NewPCG(seed, 45))
	var all []cell
	for command := range commands {
		for path := range paths {
			for fate := range fates {
				for way := range ways {
					for _, i := range random.Perm(len(made) * len(keepers) * len(ends)) {
						c := cell{command, path, fate, way, i % 3, i / 3 % 5, i / 15}
						if _, ok := c.runbook(); ok {
							all = append(all, c)
							break
						}
					}
				}
			}
		}
	}
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	seen := make(map[[4]int]bool)
	pairs := func(c cell) (fresh [][4]int) {
		for i := range c {
			for j := range i {
				if p := [4]int{i, c[i], j, c[j]}; !seen[p] {
					fresh = append(fresh, p)
				}
			}
		}
		return fresh
	}
	for len(all) > 0 {
		best := slices.MaxFunc(all, func(a, b cell) int { return cmp.Compare(len(pairs(a)), len(pairs(b))) })
		fresh := pairs(best)
		if len(fresh) == 0 {
			break
		}
		for _, p := range fresh {
			seen[p] = true
		}
		order = append(order, best)
		all = slices.DeleteFunc(all, func(c cell) bool { return c == best })
	}
	return append(order, all...)
}

// Whatever became of an interface and of the path of its namespace, no command takes anything from
// a container that lives, or leaves anything of one that is gone.
func TestEachCommandSparesTheLivingWhateverBecameOfThem(t *testing.T) {
	host.Need(t)
	if *replay != "" {
		t.Skip("plays a runbook alone")
	}
	all := cells(*seed)
	if n, err := strconv.Atoi(*cross); err == nil {
		all = all[:min(n, len(all))]
	} else if *cross != "all" {
		t.Fatalf("-cross %s: want a number, or all", *cross)
	}
	turns := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, c := range all {
		t.Run(c.name(), func(t *testing.T) {
			t.Parallel()
			turns <- struct{}{}
			defer func() { <-turns }()
			book, _ := c.runbook()
			o := play(t.Context(), host.Programs(), book)
			if o.broken != nil || o.Wrong != "" {
				t.Errorf("after line %d: %s %v\nFor -replay FILE:\n%s\n\nWhat was said:\n%s", o.At, o.Wrong, o.broken, strings.Join(book, "\n"), o.said)
			} else if n := o.Counts["impossible actions"]; n > 0 {
				t.Errorf("%d actions did nothing:\n%s", n, strings.Join(book, "\n"))
			}
		})
	}
}

// scan makes multinet look for namespaces everywhere from now on, as on kernels before 6.18.
func (n *node) scan([]string) error {
	if n.scans {
		return errNothing
	}
	n.scans = true
	return process.WithoutHandles(unix.SECCOMP_FILTER_FLAG_TSYNC) // any thread may start a program
}
