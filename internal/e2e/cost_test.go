package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite testdata")

// repeats is how often each command is measured. What the machine's load adds to a count
// is not in the least of them.
const repeats = 5

// fakes returns configurations of n delegates.
func (n *node) fakes(count int) (list []object) {
	for i := range count {
		id := fmt.Sprint("f", i)
		list = append(list, n.with(n.fake(id), object{"name": id, "cniVersion": "1.1.0"}))
	}
	return list
}

// inFiles returns a configuration of multinet whose networks are files of confDir.
func (n *node) inFiles(networks ...object) object {
	n.mkdir("net.d")
	var names []any
	for i, network := range networks {
		n.write(network, "net.d", fmt.Sprint(i, ".conf"))
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
		got, opened, multinet := n.programs(nothing, all)
		n.costs(got, opened, multinet, "multinet %s of 8", nothing, func() *pod { return n.pod(n.multinet("1.1.0", n.fakes(8)...)) }, "ADD", "DEL")
		n.costs(got, opened, multinet, "multinet %s of 8 files", nothing, func() *pod { return n.pod(n.inFiles(n.fakes(8)...)) }, "ADD")
		if *update {
			committed = committed.updated(got)
			if err := os.WriteFile(file, []byte(committed.String()), 0o600); err != nil {
				t.Fatal(err)
			}
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
			got, opened, _ := n.programs(nothing, []string{"VERSION", "ADD", "DEL"}, "-modfile="+built("later.mod"))
			compare(t, committed.only(got), got, opened)
		})
	}
}

// programs builds multinet and flannel with flags and returns what they, their start and
// their commands cost, the files opened by case, and the path of multinet.
func (n *node) programs(nothing bill, commands []string, flags ...string) (got figures, opened map[string][]string, multinet string) {
	n.Helper()
	n.subnetEnv()
	got, opened = figures{}, map[string][]string{}
	confs := map[string]func() object{
		"multinet": func() object { return n.multinet("1.1.0", n.fakes(1)...) },
		"flannel":  func() object { return n.flannel("1.1.0", n.fake("d")) },
	}
	for _, name := range []string{"multinet", "flannel"} {
		program := n.counting("../..", "examples/"+name, flags...)
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
	if err != nil {
		n.Fatal(err)
	}
	main, err := os.ReadFile(filepath.Join(source, "main.go"))
	if err != nil {
		n.Fatal(err)
	}
	const before = "\nfunc main()"
	if strings.Count(string(main), before) != 1 {
		n.Fatalf("no main in %s", source)
	}
	work := n.TempDir()
	replaced, added, overlay := filepath.Join(work, "main.go"), filepath.Join(work, "counting.go"), filepath.Join(work, "overlay.json")
	text, err := json.Marshal(object{"Replace": object{
		filepath.Join(source, "main.go"): replaced, filepath.Join(source, "counting.go"): added,
	}})
	if err != nil {
		n.Fatal(err)
	}
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
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			n.Fatal(err)
		}
	}
	return n.compile(module, dir, append(flags, "-overlay", overlay)...)
}

// size returns the number of bytes of an example as it is released.
func (n *node) size(name string, flags ...string) int {
	n.Helper()
	info, err := os.Stat(n.compile("../..", "examples/"+name, append(flags, "-ldflags=-s -n")...))
	if err != nil {
		n.Fatal(err)
	}
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
