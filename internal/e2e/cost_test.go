package e2e

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
)

var update = flag.Bool("update", false, "rewrite testdata")

// repeats is how often each command is measured. What the machine's load adds to a count
// is not in the least of them.
const repeats = 5

// fakes returns configurations of n delegates.
func (n *node) fakes(count int) (list []object) {
	for i := range count {
		id := fmt.Sprint("f", i)
		list = append(list, n.with(n.Fake(id), object{"name": id, "cniVersion": "1.1.0"}))
	}
	return list
}

// inFiles returns a configuration of multinet whose networks are files of confDir.
func (n *node) inFiles(networks ...object) object {
	n.Mkdir("net.d")
	var names []any
	for i, network := range networks {
		n.Write(network, "net.d", fmt.Sprint(i, ".conf"))
		names = append(names, network["name"])
	}
	return n.with(n.multinet("1.1.0"), object{"delegates": nil, "clusterNetwork": names[0], "defaultNetworks": names[1:]})
}

// TestCostIsAsCommitted compares what the commands of multinet and flannel cost with
// testdata/costs.txt. The counts do not depend on the machine's speed or load. Those of
// files opened and of page faults are without the ones of a Go program that does nothing,
// which depend on the kernel. Except for the names of
// their files, the cost must not grow with the number of other containers.
// With laterCNI, which changes what is compiled into the programs, the cost of their
// start, of VERSION, ADD and DEL, and their size are the same.
func TestCostIsAsCommitted(t *testing.T) {
	n := newNode(t)
	const file = "testdata/costs.txt"
	committed := readFigures(t, file)
	nothing := n.least(n.counting(".", "testdata/noop"), "VERSION", func() *pod { return n.pod(object{}) })
	compare := func(t *testing.T, committed, got figures, opened map[string][]string) {
		t.Helper()
		for _, line := range committed.compare(got) {
			if of, after, _ := strings.Cut(line, ": opens "); after != "" {
				line += "; opened:\n" + strings.Join(opened[of], "\n")
			}
			t.Error(line)
		}
		t.Logf("figures:\n%s", got)
	}
	t.Run("cni of go.mod", func(t *testing.T) {
		n := newNode(t) // files of earlier records are read too
		all := []string{"VERSION", "STATUS", "ADD", "CHECK", "DEL", "DEL"}
		one := func() *pod { return n.pod(n.multinet("1.1.0", n.fakes(1)...)) }
		got, opened, multinet := n.programs(nothing, all, false)
		n.costs(got, opened, multinet, "multinet %s of 8", nothing, func() *pod { return n.pod(n.multinet("1.1.0", n.fakes(8)...)) }, "ADD", "DEL")
		n.costs(got, opened, multinet, "multinet %s of 8 files", nothing, func() *pod { return n.pod(n.inFiles(n.fakes(8)...)) }, "ADD")
		if *update {
			committed = committed.updated(got)
			nodetest.OK(t, os.WriteFile(file, []byte(committed.String()), 0o600))
		}
		compare(t, committed, got, opened)

		for range 100 {
			n.ok("ADD", one())
		}
		among := figures{}
		n.costs(among, map[string][]string{}, multinet, "multinet %s", nothing, one, all...)
		for key, f := range among { // the names of all files with records are read
			first, again := key.of == "multinet DEL", key.of == "multinet repeated DEL"
			switch {
			case key.what == "allocations" || key.what == "directory-reads" || first && key.what == "page-faults":
				delete(among, key)
			case key.what == "opens" && first:
				f.count -= 2 // the index of addresses, and the directory: whether it is still needed
				among[key] = f
			case key.what == "opens" && again:
				f.count-- // the directory
				among[key] = f
			}
		}
		for _, line := range got.only(among).compare(among) {
			t.Error("among 100 containers: " + line)
		}
	})
	if !*update {
		t.Run("cni "+laterCNI, func(t *testing.T) {
			n := newNode(t)
			got, opened, _ := n.programs(nothing, []string{"VERSION", "ADD", "DEL"}, true)
			compare(t, committed.only(got), got, opened)
		})
	}
}

// measured are the programs whose cost is committed: their modules, and their directories
// in them.
var measured = map[string]struct{ module, dir string }{
	"multinet": {"../../examples/multinet", "cmd/multinet"},
	"flannel":  {"../..", "examples/flannel"},
}

// programs builds the measured programs, with laterCNI or as go.mod has it, and returns what
// they, their start and their commands cost, the files opened by case, and the path of multinet.
func (n *node) programs(nothing bill, commands []string, later bool) (got figures, opened map[string][]string, multinet string) {
	n.Helper()
	n.subnetEnv()
	got, opened = figures{}, map[string][]string{}
	confs := map[string]func() object{
		"multinet": func() object { return n.multinet("1.1.0", n.fakes(1)...) },
		"flannel":  func() object { return n.flannel("1.1.0", n.Fake("d")) },
	}
	for _, name := range slices.Sorted(maps.Keys(measured)) {
		var flags []string
		if later {
			flags = []string{"-modfile=" + built(name+".mod")}
		}
		program := n.counting(measured[name].module, measured[name].dir, flags...)
		n.costs(got, opened, program, name+" %s", nothing, func() *pod { return n.pod(confs[name]()) }, commands...)
		n.inits(got, name, program)
		got[figureKey{name, "size"}] = figure{n.size(name, flags...), 2}
		if name == "multinet" {
			multinet = program
		}
	}
	return got, opened, multinet
}

// costs measures the commands of a plugin, and adds the figures and the files opened by
// case. The name of a case has %s for the command.
func (n *node) costs(fs figures, opened map[string][]string, program, name string, nothing bill, pod func() *pod, commands ...string) {
	n.Helper()
	p := pod() // leaves the file of a record that is deleted, as on any node in use
	n.traced(program, "ADD", p)
	n.traced(program, "DEL", p)
	bills := map[string]bill{}
	for range repeats {
		p := pod()
		for i, command := range commands {
			name := command
			if i > 0 && commands[i-1] == command {
				name = "repeated " + command
			}
			n.merge(bills, name, n.traced(program, command, p))
		}
	}
	for command, b := range bills {
		b.opens, b.faults = b.opens-nothing.opens, b.faults-nothing.faults
		of := fmt.Sprintf(name, command)
		opened[of] = b.opened
		fs.add(of, b)
	}
}

// least returns the least bill of a command.
func (n *node) least(program, command string, pod func() *pod) bill {
	n.Helper()
	bills := map[string]bill{}
	for range repeats {
		n.merge(bills, command, n.traced(program, command, pod()))
	}
	return bills[command]
}

// merge keeps the lesser of two bills. Counts of what a program does must be the same.
func (n *node) merge(bills map[string]bill, name string, b bill) {
	n.Helper()
	old, ok := bills[name]
	if !ok {
		bills[name] = b
		return
	}
	if old.syncs != b.syncs || old.opens != b.opens || old.scans != b.scans || old.execs != b.execs || old.looks != b.looks || old.lists != b.lists || old.cache != b.cache {
		n.Errorf("%s costs %+v, and the next time %+v", name, old, b)
	}
	b.memory, b.faults, b.allocs = min(old.memory, b.memory), min(old.faults, b.faults), min(old.allocs, b.allocs)
	bills[name] = b
}

// add adds the figures of a bill.
func (fs figures) add(of string, b bill) {
	for what, f := range map[string]figure{
		"fsyncs": {b.syncs, 0}, "opens": {b.opens, 0}, "directory-reads": {b.scans, 0}, "execs": {b.execs, 0},
		"netns-opens": {b.looks, 0}, "netns-lists": {b.lists, 0},
		"allocations": {b.allocs, 4}, "page-faults": {b.faults, 20}, "memory-kB": {b.memory, 10},
	} {
		fs[figureKey{of, what}] = f
	}
	if b.cache > 0 {
		fs[figureKey{of, "libcni-looks"}] = figure{b.cache, 0}
	}
}

// inits adds what a program initializes before main.
func (n *node) inits(fs figures, name, program string) {
	n.Helper()
	cmd := exec.CommandContext(n.Context(), program)
	cmd.Env = []string{"CNI_COMMAND=VERSION", "GODEBUG=inittrace=1"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		n.Fatalf("%v: %s", err, out)
	}
	bytes, allocs := 0, 0
	packages := regexp.MustCompile(`(?m)^init (\S+) @.* clock, (\d+) bytes, (\d+) allocs$`).FindAllSubmatch(out, -1)
	for _, p := range packages {
		b, _ := strconv.Atoi(string(p[2]))
		a, _ := strconv.Atoi(string(p[3]))
		bytes, allocs = bytes+b, allocs+a
	}
	for what, f := range map[string]figure{"init-packages": {len(packages), 2}, "init-bytes": {bytes, 4}, "init-allocations": {allocs, 4}} {
		fs[figureKey{name, what}] = f
	}
}

// counting builds a program that at the end of main writes the number of its allocations
// to file 3. It returns its path.
func (n *node) counting(module, dir string, flags ...string) string {
	n.Helper()
	source, err := filepath.Abs(filepath.Join(module, dir))
	nodetest.OK(n, err)
	main, err := os.ReadFile(filepath.Join(source, "main.go"))
	nodetest.OK(n, err)
	const before = "\nfunc main()"
	if strings.Count(string(main), before) != 1 {
		n.Fatalf("no main in %s", source)
	}
	work := n.TempDir()
	replaced, added, overlay := filepath.Join(work, "main.go"), filepath.Join(work, "counting.go"), filepath.Join(work, "overlay.json")
	text, err := json.Marshal(object{"Replace": object{
		filepath.Join(source, "main.go"): replaced, filepath.Join(source, "counting.go"): added,
	}})
	nodetest.OK(n, err)
	for path, text := range map[string]string{
		replaced: strings.Replace(string(main), before, "\nfunc uncounted()", 1),
		added: `package main

import (
	"os"
	"runtime"
	"strconv"
)

func main() {
	uncounted()
	for range 10 {
		runtime.Gosched() // otherwise chance decides what goroutines have done until now
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	_, _ = os.NewFile(3, "counts").WriteString(strconv.FormatUint(m.Mallocs, 10))
}
`,
		overlay: string(text),
	} {
		nodetest.OK(n, os.WriteFile(path, []byte(text), 0o600))
	}
	return n.compile(module, dir, append(flags, "-overlay", overlay)...)
}

// size returns the number of bytes of a program as it is released.
func (n *node) size(name string, flags ...string) int {
	n.Helper()
	info, err := os.Stat(n.compile(measured[name].module, measured[name].dir, append(flags, "-ldflags=-s -n")...))
	nodetest.OK(n, err)
	return int(info.Size())
}

// compile builds the program in a directory of a module and returns its path.
func (n *node) compile(module, dir string, flags ...string) string {
	n.Helper()
	to := filepath.Join(n.TempDir(), filepath.Base(dir))
	cmd := exec.CommandContext(n.Context(), "go", append(append([]string{"build", "-trimpath", "-buildvcs=false", "-o", to}, flags...), "./"+dir)...)
	cmd.Dir, cmd.Env = module, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		n.Fatalf("%v: %s", err, out)
	}
	return to
}

// A figureKey is a case, such as "multinet ADD of 8", and what is counted, such as "fsyncs".
type figureKey struct{ of, what string }

// A figure is a count, and by how many percent it may be exceeded. With zero percent the
// count must be equal.
type figure struct{ count, percent int }

// figures are what a program costs.
type figures map[figureKey]figure

const figuresHead = `# What commands of the examples cost, in counts, with one delegate unless it says "of 8".
# A count may be exceeded by the percentage in the last column, without one it must be
# equal. TestCostIsAsCommitted compares. To accept other counts, in internal/e2e:
#
#     go test -run '^TestCostIsAsCommitted$' . -update
#
`

var figureLine = regexp.MustCompile(`(?m)^([^#\n]+?) +(\S+) +(\d+)(?: \+(\d+)%)?$`)

// readFigures returns the committed figures, in the form of String.
func readFigures(t *testing.T, path string) figures {
	t.Helper()
	text, err := os.ReadFile(path)
	nodetest.OK(t, err)
	fs := figures{}
	for _, m := range figureLine.FindAllStringSubmatch(string(text), -1) {
		count, _ := strconv.Atoi(m[3])
		percent, _ := strconv.Atoi(m[4]) // 0 if there is none
		fs[figureKey{m[1], m[2]}] = figure{count, percent}
	}
	return fs
}

// String returns the figures as sorted lines.
func (fs figures) String() string {
	var b strings.Builder
	b.WriteString(figuresHead)
	for _, key := range fs.keys() {
		line := fmt.Sprintf("%-22s %-16s %8d", key.of, key.what, fs[key].count)
		if p := fs[key].percent; p != 0 {
			line += fmt.Sprintf(" +%d%%", p)
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

func (fs figures) keys() []figureKey {
	return slices.SortedFunc(maps.Keys(fs), func(a, b figureKey) int {
		return cmp.Or(cmp.Compare(a.of, b.of), cmp.Compare(a.what, b.what))
	})
}

// only returns the figures that others has too.
func (fs figures) only(others figures) figures {
	some := maps.Clone(fs)
	maps.DeleteFunc(some, func(key figureKey, _ figure) bool { _, ok := others[key]; return !ok })
	return some
}

// compare returns one line for each figure of got that is not as committed.
func (fs figures) compare(got figures) (lines []string) {
	all := maps.Clone(fs)
	maps.Copy(all, got)
	for _, key := range all.keys() {
		want, committed := fs[key]
		now, measured := got[key]
		what := key.of + ": " + key.what
		by := now.count - want.count
		switch {
		case !measured:
			lines = append(lines, fmt.Sprintf("%s: committed, but not measured", what))
		case !committed:
			lines = append(lines, fmt.Sprintf("%s: %d, not committed", what, now.count))
		case by*100 > want.count*want.percent:
			line := fmt.Sprintf("%s grew from %d to %d, by %d", what, want.count, now.count, by)
			if want.percent > 0 {
				line += fmt.Sprintf(" (%d%%); it may grow by %d%%", by*100/max(want.count, 1), want.percent)
			}
			lines = append(lines, line)
		case by < 0 && want.percent == 0:
			lines = append(lines, fmt.Sprintf("%s fell from %d to %d, by %d: accept it", what, want.count, now.count, -by))
		}
	}
	return lines
}

// updated returns the figures to commit after got. A count within its tolerance, and the tolerance
// of a figure stay, so that only the lines change that must. A count that has grown by more than
// half of its tolerance does not: the next time it would exceed the tolerance by chance.
func (fs figures) updated(got figures) figures {
	next := maps.Clone(got)
	for key, now := range got {
		if old, ok := fs[key]; ok {
			if by := max(2*(now.count-old.count), old.count-now.count); by*100 <= old.count*old.percent {
				now.count = old.count
			}
			next[key] = figure{now.count, old.percent}
		}
	}
	return next
}

func TestFiguresSayWhatGrew(t *testing.T) {
	t.Parallel()
	of := func(what string, count, percent int) figures { return figures{{"p ADD", what}: {count, percent}} }
	for name, tt := range map[string]struct {
		committed, got, updated figures
		want                    string
	}{
		"equal":                {of("opens", 3, 0), of("opens", 3, 0), of("opens", 3, 0), ""},
		"exact, more":          {of("opens", 3, 0), of("opens", 4, 0), of("opens", 4, 0), "p ADD: opens grew from 3 to 4, by 1"},
		"exact, less":          {of("opens", 3, 0), of("opens", 1, 0), of("opens", 1, 0), "p ADD: opens fell from 3 to 1, by 2: accept it"},
		"half the tolerance":   {of("faults", 200, 10), of("faults", 210, 5), of("faults", 200, 10), ""},
		"the tolerance":        {of("faults", 200, 10), of("faults", 220, 5), of("faults", 220, 10), ""},
		"more than that":       {of("faults", 200, 10), of("faults", 230, 5), of("faults", 230, 10), "p ADD: faults grew from 200 to 230, by 30 (15%); it may grow by 10%"},
		"less by more than it": {of("faults", 200, 10), of("faults", 100, 5), of("faults", 100, 10), ""},
		"new":                  {figures{}, of("opens", 3, 0), of("opens", 3, 0), "p ADD: opens: 3, not committed"},
		"gone":                 {of("opens", 3, 0), figures{}, figures{}, "p ADD: opens: committed, but not measured"},
	} {
		nodetest.Equal(t, name, strings.Join(tt.committed.compare(tt.got), "\n"), tt.want)
		nodetest.Equal(t, name+", updated", tt.committed.updated(tt.got).String(), tt.updated.String())
		path := filepath.Join(t.TempDir(), "figures")
		nodetest.OK(t, os.WriteFile(path, []byte(tt.updated.String()), 0o600))
		nodetest.Equal(t, name+", read", readFigures(t, path).String(), tt.updated.String())
	}
}

// A bill is what a plugin has done. Its delegates do not count, except in execs. The
// first seven counts are the same on every run and machine, the others vary a little.
type bill struct {
	syncs int // fsync and fdatasync
	opens int // files opened, without the plugin's own network namespace
	scans int // getdents64: reads of directories
	execs int // programs run
	looks int // how often the container's network namespace was opened
	lists int // netlink sockets: lists of the interfaces there
	cache int // looks for files in the cache of libcni

	memory int // peak resident memory in kB
	faults int // page faults without I/O
	allocs int // objects allocated on the heap

	opened []string // the paths of the files opened
}

// traced runs a plugin, which counting has built, under ptrace(2) and returns its bill.
func (n *node) traced(path, command string, p *pod) bill {
	n.Helper()
	dir := n.TempDir()
	stdout := filepath.Join(dir, "stdout")
	n.Write(p.Conf, "traced")
	in, err := os.Open(n.File("traced"))
	nodetest.OK(n, err)
	defer in.Close()
	out, err := os.Create(stdout)
	nodetest.OK(n, err)
	defer out.Close()
	counts, err := os.Create(filepath.Join(dir, "counts"))
	nodetest.OK(n, err)
	defer counts.Close()
	cmd := exec.CommandContext(n.Context(), path)
	cmd.Env = []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + p.ID, "CNI_NETNS=" + p.NetNS, "CNI_IFNAME=" + p.IfName,
		"CNI_PATH=" + n.Bin, "PATH=" + process.Path,
		"GODEBUG=asyncpreemptoff=1", // the Go runtime must not signal threads that ptrace stops
		"GOMAXPROCS=1",              // the order of goroutines, and the memory for processors, vary less
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = in, out, out, []*os.File{counts}
	b, status, err := trace(cmd)
	for _, path := range b.opened {
		if path == p.NetNS {
			b.looks++
		}
	}
	if text, _ := os.ReadFile(stdout); err != nil || status != 0 {
		n.Fatalf("%s %s: %v, status %d: %s", path, command, err, status, text)
	}
	text, err := os.ReadFile(counts.Name())
	if err == nil {
		b.allocs, err = strconv.Atoi(string(text))
	}
	if err != nil {
		n.Fatalf("%s %s has not written the number of its allocations: %v", path, command, err)
	}
	return b
}

// trace runs cmd until it exits. All ptrace requests come from this thread. It
// waits only for the process group of cmd, which contains neither delegates nor
// the children of other tests.
func trace(cmd *exec.Cmd) (b bill, status int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// cmd inherits this. With huge pages memory and page faults would depend on the machine.
	if err := unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0); err != nil {
		return b, 0, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return b, 0, err
	}
	tracee := cmd.Process.Pid
	var ws unix.WaitStatus
	if _, err := unix.Wait4(tracee, &ws, unix.WALL, nil); err != nil {
		return b, 0, err
	}
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEEXIT | unix.PTRACE_O_EXITKILL
	if err := unix.PtraceSetOptions(tracee, options); err != nil {
		return b, 0, err
	}
	calls := map[int]syscallEntry{} // by thread, while in the call
	for tid, signal := tracee, 0; ; {
		// The thread may have been killed in the meantime.
		if err := unix.PtraceSyscall(tid, signal); err != nil && err != unix.ESRCH {
			return b, 0, err
		}
		signal = 0
		for {
			tid, err = unix.Wait4(-tracee, &ws, unix.WALL, nil)
			if err == unix.ECHILD {
				return b, status, nil
			}
			if err != nil && err != unix.EINTR {
				return b, 0, err
			}
			if tid == tracee && ws.Exited() {
				status = ws.ExitStatus()
			}
			if err == nil && ws.Stopped() {
				break
			}
		}
		switch stop := ws.StopSignal(); {
		case stop == unix.SIGTRAP|0x80:
			b.syscall(tid, calls)
		case stop == unix.SIGTRAP && ws.TrapCause() == unix.PTRACE_EVENT_EXIT:
			b.memory = max(b.memory, nodetest.Status(tid, "VmHWM"))
			b.faults = max(b.faults, minorFaults(tid))
		case stop == unix.SIGTRAP, stop == unix.SIGSTOP:
		default:
			signal = int(stop)
		}
	}
}

// syscall counts a system call that thread tid has entered or left.
func (b *bill) syscall(tid int, calls map[int]syscallEntry) {
	var info [88]byte // struct ptrace_syscall_info
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), uintptr(len(info)), uintptr(unsafe.Pointer(&info[0])), 0, 0)
	if errno != 0 {
		return
	}
	value := binary.NativeEndian.Uint64(info[24:])
	if info[0] == unix.PTRACE_SYSCALL_INFO_ENTRY {
		calls[tid] = syscallEntry{number: value, first: binary.NativeEndian.Uint64(info[32:])}
		if value == newfstatat && strings.HasPrefix(stringAt(tid, binary.NativeEndian.Uint64(info[40:])), "/var/lib/cni/results/") {
			b.cache++
		}
		return
	}
	if int64(value) < 0 { //nolint:gosec // the register holds a signed number
		return
	}
	switch calls[tid].number {
	case unix.SYS_FSYNC, unix.SYS_FDATASYNC:
		b.syncs++
	case unix.SYS_OPENAT, unix.SYS_OPENAT2:
		path, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, value))
		if !strings.HasPrefix(path, "net:[") { // before Linux 6.18 it is entered to identify another
			b.opens++
			b.opened = append(b.opened, path)
		}
	case unix.SYS_GETDENTS64:
		b.scans++
	case unix.SYS_SOCKET:
		if calls[tid].first == unix.AF_NETLINK {
			b.lists++
		}
	case unix.SYS_CLONE:
		if calls[tid].first&unix.CLONE_VFORK != 0 { // otherwise it starts a thread
			b.execs++
		}
	}
}

// newfstatat is the number of a system call that has a name of its own on arm64.
var newfstatat = map[string]uint64{"amd64": 262, "arm64": 79}[runtime.GOARCH]

// A syscallEntry is the number of a system call and its first argument.
type syscallEntry struct{ number, first uint64 }

// stringAt returns the beginning of a string in the memory of a thread, or nothing.
func stringAt(tid int, address uint64) string {
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", tid))
	if err != nil {
		return ""
	}
	defer memory.Close()
	var text [64]byte
	n, _ := memory.ReadAt(text[:], int64(address)) //nolint:gosec // an address of user space
	found, _, _ := bytes.Cut(text[:n], []byte{0})
	return string(found)
}

// minorFaults returns the number of page faults without I/O of the process of a thread,
// or 0.
func minorFaults(tid int) int {
	fields := nodetest.Stat(tid)
	if len(fields) < 8 {
		return 0
	}
	n, _ := strconv.Atoi(fields[7])
	return n
}
