package e2e

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/lab/host"
	"github.com/metacni/metacni/internal/hosttest"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
	"github.com/metacni/metacni/scratch"
)

// newBenchNode returns a node whose records and leases are on a disk, as far as the directory
// for temporary files is: in memory a sync costs nothing.
func newBenchNode(b *testing.B) *node {
	b.Helper()
	hosttest.Need(b)
	return nodeIn(b, os.TempDir())
}

var peers = hosttest.Peers()

// A contender is a meta-plugin, or one way to run it.
type contender struct {
	label string
	floor bool // it only runs the delegates
	once  int  // commands that the runtime executes at once; 0 means all
	setUp func(e *entrant, delegates []object) object
}

// An entrant is a contender on a node of its own.
type entrant struct {
	contender
	*node
	conf   object           // of its network
	served *daemon          // or nil
	api    *kubetest.Server // of the daemon's cluster, or nil
	costs  map[string]*cost // by command
}

// contenders returns the meta-plugins to compare, with those of -peer, which are configured as
// Multus is.
func contenders(tb testing.TB) []contender {
	tb.Helper()
	typed := func(typ string, more object) func(*entrant, []object) object {
		return func(e *entrant, delegates []object) object {
			conf := object{"type": typ, "cniDir": e.File(typ), "cacheDir": e.File("cache")} // of Multus, and of testdata/libcni
			return e.with(e.with(e.multinet("1.0.0", delegates...), conf), more)
		}
	}
	daemon := func(cluster bool) func(*entrant, []object) object {
		return func(e *entrant, delegates []object) object {
			e.Mkdir("d", "relay")
			nodetest.OK(e, os.Link(built("resident"), e.File("relay", "10-resident")))
			keys := object{"relayDir": e.File("relay"), "binDir": e.Bin, "logLevel": "error"}
			if cluster {
				e.api = newAPI(e)
				kubeconfig, err := e.api.Kubeconfig(e.Dir)
				nodetest.OK(e, err)
				e.with(keys, object{"kubeconfig": kubeconfig, "nodeName": "n1"})
			}
			e.served = e.daemon(daemonConf{keys: keys})
			return e.thick("1.0.0", delegates...)
		}
	}
	limit := 2 * runtime.NumCPU()
	all := []contender{
		{"libcni", true, 0, typed("libcni", nil)},
		{fmt.Sprintf("libcni, %d at once", limit), true, limit, typed("libcni", nil)},
		{"multinet", false, 0, typed("multinet", nil)},
		{"parallel", false, 0, typed("multinet", object{"parallel": true})},
		{"multinetd", false, 0, daemon(false)},
		{"multinetd in a cluster", false, 0, daemon(true)},
	}
	for _, p := range *peers {
		if err := os.Symlink(p.Path, built(p.Name)); err != nil && !os.IsExist(err) {
			tb.Fatal(err)
		}
		all = append(all, contender{p.Name, false, 0, typed(p.Name, nil)})
	}
	return all
}

// A Pod is a pod as the API server has it.
type Pod struct {
	Metadata object `json:"metadata"`
	Spec     object `json:"spec"`
}

// newAPI starts an API server in this process. Its costs are not counted.
func newAPI(tb testing.TB) *kubetest.Server {
	tb.Helper()
	api := kubetest.NewServer(func([]byte, *int, any) (any, *int, error) { // of Events, which nobody reads
		return object{"kind": "Event", "apiVersion": "events.k8s.io/v1", "metadata": object{"name": rand.Text()}}, nil, nil
	})
	tb.Cleanup(api.Close)
	return api
}

// delegates returns configurations of count plugins of a type.
func (n *node) delegates(typ string, count int) []object {
	list := make([]object, count)
	for i := range list {
		switch typ {
		case "bridge":
			list[i] = n.bridge(i)
			list[i]["ipam"].(object)["dataDir"] = n.File("leases")
		default:
			list[i] = object{"type": typ, "addresses": []string{"192.0.2.2/24"}} // those of resident
		}
		n.with(list[i], object{"name": n.Numbered("net-" + strconv.Itoa(i) + "-"), "cniVersion": "1.0.0"})
	}
	return list
}

// times is how long the commands of a benchmark have taken in all.
type times map[string]time.Duration

// measure runs a command, which must succeed.
func (ts times) measure(n *node, command string, p *pod, extras ...extra) {
	n.Helper()
	a := n.ok(command, p, extras...)
	ts[command] += a.Took
	if command == "ADD" {
		p.Result = a.Stdout
	}
}

// A cost is the cost of a command, in all rounds.
type cost struct {
	took   []time.Duration // by the pods, from the begin of the burst until wait returns
	cpu    time.Duration
	memory int // peak of the resident set of the daemon, or of a command, in kB
}

// processorTime returns the processor time of the daemon and its plugins.
func (d *daemon) processorTime() (all time.Duration) {
	for _, ticks := range nodetest.Stat(d.Cmd.Process.Pid)[11:15] {
		n, _ := strconv.Atoi(ticks)
		all += time.Duration(n) * 10 * time.Millisecond
	}
	return all
}

// burst runs a command for all pods at once.
func (e *entrant) burst(command string, pods []*pod) cost {
	c := cost{}
	if e.served != nil {
		c.cpu -= e.served.processorTime()
	}
	places := make(chan struct{}, cmp.Or(e.once, len(pods)))
	var mu sync.Mutex
	var all sync.WaitGroup
	start := time.Now()
	for i, p := range pods {
		places <- struct{}{}
		r := e.start(command, p)
		if i == 0 && e.served == nil {
			all.Go(func() { c.memory = peak(r.Cmd.Process.Pid) })
		}
		all.Go(func() {
			a := e.Wait(r)
			took := time.Since(start)
			<-places
			if a.Code != 0 {
				e.Errorf("%s: %s %s: %s %s", e.label, command, p.ID, a.Stdout, a.Stderr)
			}
			if command == "ADD" {
				p.Result = a.Stdout
			}
			mu.Lock()
			defer mu.Unlock()
			c.took = append(c.took, took)
			c.cpu += r.Cmd.ProcessState.UserTime() + r.Cmd.ProcessState.SystemTime()
		})
	}
	all.Wait()
	if e.served != nil {
		c.cpu += e.served.processorTime()
		c.memory = statusField(e.served.Cmd.Process.Pid, "VmHWM")
	}
	return c
}

// peak polls a process until the process ends, and returns the last peak of its resident set, in
// kB. The kernel's own account includes the process that has started it.
func peak(pid int) (kB int) {
	for {
		now := statusField(pid, "VmHWM")
		if now == 0 {
			return kB
		}
		kB = now
		time.Sleep(2 * time.Millisecond)
	}
}

// round attaches pods and detaches them, and adds what that has cost.
func (e *entrant) round(pods int) {
	all := e.newPods(pods, func() object { return e.conf })
	for _, p := range all {
		if e.api != nil {
			kubetest.Put(e.api, &Pod{object{"namespace": "default", "name": p.ID, "uid": "4f8c"}, object{"nodeName": "n1"}})
		}
	}
	for _, command := range []string{"ADD", "DEL"} {
		c, sum := e.burst(command, all), e.costs[command]
		if sum == nil {
			e.costs[command] = &c
			continue
		}
		sum.took, sum.cpu, sum.memory = append(sum.took, c.took...), sum.cpu+c.cpu, max(sum.memory, c.memory)
	}
	for _, p := range all {
		nodetest.OK(e, host.RemoveNS(p.NetNS))
	}
	time.Sleep(100 * time.Millisecond) // the kernel deletes the namespaces after that
}

// A benchCase is a number of pods that are attached at once, each to count networks.
type benchCase struct {
	typ         string
	count, pods int
}

var benchCases = []benchCase{
	{"bridge", 1, 1},
	{"bridge", 4, 1},
	{"bridge", 8, 1},
	{"noop", 1, 1},
	{"noop", 8, 1},
	{"resident", 1, 1},
	{"resident", 8, 1},
	{"bridge", 1, 20},
	{"bridge", 4, 20},
	{"bridge", 1, 100},
	{"bridge", 4, 100},
}

// roundsOfABurst is how many rounds of a benchmark have one of a burst of pods.
const roundsOfABurst = 6

// BenchmarkCommands measures ADDs, and the DELs after them, each time of other containers: of
// plugins that do nothing, which shows the meta-plugin's own cost, of bridge with host-local, and
// of examples/resident, which multinetd need not execute. The contenders take turns in each
// round, and the first round does not count. With -update it writes BENCH.md and the table in
// the README of the repository.
func BenchmarkCommands(b *testing.B) {
	hosttest.Need(b)
	var p page
	for _, c := range benchCases {
		b.Run(fmt.Sprintf("delegates=%s/n=%d/pods=%d", c.typ, c.count, c.pods), func(b *testing.B) {
			if testing.Short() {
				c.pods = min(c.pods, 3)
			}
			var all []*entrant
			for _, who := range contenders(b) {
				if who.once > 0 && c.pods == 1 {
					continue
				}
				e := &entrant{contender: who, node: newBenchNode(b), costs: map[string]*cost{}}
				e.conf = who.setUp(e, e.delegates(c.typ, c.count))
				if !testing.Short() {
					e.round(c.pods)
					clear(e.costs)
				}
				all = append(all, e)
			}
			for i := 0; b.Loop(); i++ {
				if c.pods > 1 && i%roundsOfABurst != 0 {
					continue
				}
				for _, e := range all {
					e.round(c.pods)
				}
				slices.Reverse(all)
			}
			b.ReportMetric(0, "ns/op")
			for _, r := range p.add(c, all) {
				for _, row := range r.rows {
					name := strings.ReplaceAll(row.name, " ", "_") + "-" + r.command
					b.ReportMetric(row.median, name+"-ms")
					if c.pods > 1 {
						b.ReportMetric(row.p95, name+"-p95-ms")
						b.ReportMetric(row.p99, name+"-p99-ms")
					}
				}
			}
		})
	}
	if *update && !testing.Short() && len(p.results) == 2*len(benchCases) {
		p.write(b)
	}
}

// BenchmarkAmongRecords measures commands among valid records of other containers. With -update
// it writes the table in BENCH.md.
func BenchmarkAmongRecords(b *testing.B) {
	table := "| records | ADD | DEL | GC | list |\n|--:|--:|--:|--:|--:|\n"
	for _, count := range []int{0, 10_000} {
		if testing.Short() {
			count = min(count, 10)
		}
		b.Run(fmt.Sprintf("records=%d", count), func(b *testing.B) {
			n := newBenchNode(b)
			conf := n.multinet("1.1.0", n.delegates("noop", 1)...)
			others := n.record(count)
			ts := times{}
			for b.Loop() {
				p := n.pod(conf)
				ts.measure(n, "ADD", p)
				ts.measure(n, "DEL", p)
				ts.measure(n, "GC", p, valid(others...))
				start := time.Now()
				n.operate(0, "list")
				ts["list"] += time.Since(start)
				nodetest.OK(n, host.RemoveNS(p.NetNS))
			}
			b.ReportMetric(0, "ns/op")
			table += fmt.Sprintf("| %d |", count)
			for _, command := range []string{"ADD", "DEL", "GC", "list"} {
				mean := ms(ts[command]) / float64(b.N)
				b.ReportMetric(mean, command+"-ms")
				table += " " + number(mean) + " |"
			}
			table += "\n"
		})
	}
	if *update && !testing.Short() {
		section(b, benchPage, "records", table)
	}
}

// record records attachments of count containers, which it returns, with the library.
func (n *node) record(count int) []*pod {
	n.Helper()
	network := nodetest.Parse(`{"cniVersion":"1.1.0","name":"` + n.Numbered("net-0-") + `","plugins":[{"type":"noop","bridge":"br0","isGateway":true,"ipMasq":true,` +
		`"ipam":{"type":"host-local","ranges":[[{"subnet":"10.0.0.0/16","gateway":"10.0.0.1"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}`)
	plugin := delegatetest.Result(&types100.Result{
		CNIVersion: "1.1.0",
		Interfaces: []*types100.Interface{{Name: "br0", Mac: "02:00:00:00:00:01"}, {Name: "eth0", Mac: "02:00:00:00:00:03", Sandbox: "/run/netns/pod"}},
		IPs:        []*types100.IPConfig{{Interface: types100.Int(1), Address: net.IPNet{IP: net.IPv4(10, 0, 0, 2).To4(), Mask: net.CIDRMask(16, 32)}}},
	})
	m := &lifecycle.Manager{Dir: n.File("state"), Invoker: &delegate.Invoker{Exec: &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"noop": plugin}}}}
	pods := make([]*pod, count)
	for i := range pods {
		p := &pod{process.Pod{ID: fmt.Sprintf("%064x", i+1), NetNS: filepath.Join("/run/netns", strconv.Itoa(i)), IfName: "eth0"}}
		a := delegate.Attachment{Network: network, ContainerID: p.ID, NetNS: p.NetNS, IfName: p.IfName, Args: "IgnoreUnknown=1;K8S_POD_NAME=pod-" + strconv.Itoa(i)}
		_, err := m.Add(n.Context(), scratch.Key{Network: n.Numbered("multi"), ContainerID: p.ID, IfName: p.IfName}, lifecycle.Transaction{Plan: lifecycle.Plan(a)})
		nodetest.OK(n, err)
		pods[i] = p
	}
	unix.Sync() // otherwise the sync of the first ADD would write all of them
	return pods
}

// A page has the results of the benchmarks, in order.
type page struct{ results []result }

// A result is of a command of all contenders in one case.
type result struct {
	benchCase
	command string
	rows    []row
}

// A row has the costs of a command of one contender.
type row struct {
	name             string
	floor            bool
	median, p95, p99 float64 // ms
	cpu              float64 // ms a pod
	memory           int     // kB
}

// add adds the results of a case, which it returns: of ADD, and of DEL.
func (p *page) add(c benchCase, all []*entrant) []result {
	order := slices.SortedFunc(slices.Values(all), func(a, b *entrant) int { return cmp.Compare(a.ID, b.ID) })
	for _, command := range []string{"ADD", "DEL"} {
		r := result{c, command, nil}
		for _, e := range order {
			sum := e.costs[command]
			slices.Sort(sum.took)
			r.rows = append(r.rows, row{
				e.label, e.floor, percentile(sum.took, 0.5), percentile(sum.took, 0.95), percentile(sum.took, 0.99),
				ms(sum.cpu) / float64(len(sum.took)), sum.memory,
			})
		}
		p.results = append(p.results, r)
	}
	return p.results[len(p.results)-2:]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// percentile returns a percentile of sorted times, in milliseconds.
func percentile(sorted []time.Duration, part float64) float64 {
	return ms(sorted[max(0, int(math.Ceil(part*float64(len(sorted))))-1)])
}

// floor returns the least of what the floors have cost.
func (r result) floor(of func(row) float64) float64 {
	least := math.Inf(1)
	for _, row := range r.rows {
		if row.floor {
			least = min(least, of(row))
		}
	}
	return least
}

// number formats a time in milliseconds with three digits.
func number(ms float64) string {
	switch {
	case ms < 10:
		return fmt.Sprintf("%.2f", ms)
	case ms < 100:
		return fmt.Sprintf("%.1f", ms)
	}
	return fmt.Sprintf("%.0f", ms)
}

// names are of one delegate and of several.
var names = map[string][2]string{
	"noop":     {"one plugin that does nothing", "plugins that do nothing"},
	"resident": {"one resident plugin", "resident plugins"},
	"bridge":   {"one bridge network", "bridge networks"},
}

// commands returns a table of the medians of single commands, of all cases or those in only.
func (p *page) commands(only ...benchCase) string {
	var b strings.Builder
	for _, r := range p.results {
		if r.pods > 1 || only != nil && !slices.Contains(only, r.benchCase) {
			continue
		}
		if b.Len() == 0 {
			b.WriteString("| |")
			for _, row := range r.rows {
				fmt.Fprintf(&b, " %s |", row.name)
			}
			b.WriteString("\n|---|" + strings.Repeat("--:|", len(r.rows)) + "\n")
		}
		what := names[r.typ][0]
		if r.count > 1 {
			what = fmt.Sprintf("%d %s", r.count, names[r.typ][1])
		}
		fmt.Fprintf(&b, "| %s of %s |", r.command, what)
		for _, row := range r.rows {
			fmt.Fprintf(&b, " %s |", number(row.median))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// bursts returns a table of the bursts.
func (p *page) bursts() string {
	var b strings.Builder
	b.WriteString("| | | median | p95 | p99 | p95 by the floor's | p99 by the floor's | CPU a pod | peak memory, MB |\n|---|---|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, r := range p.results {
		if r.pods == 1 {
			continue
		}
		what := r.title()
		p95, p99 := r.floor(func(r row) float64 { return r.p95 }), r.floor(func(r row) float64 { return r.p99 })
		for _, row := range r.rows {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %.2f | %.2f | %s | %.1f |\n", what, row.name,
				number(row.median), number(row.p95), number(row.p99), row.p95/p95, row.p99/p99, number(row.cpu), float64(row.memory)/1000)
			what = ""
		}
	}
	return b.String()
}

func (r result) title() string {
	return strings.TrimSuffix(fmt.Sprintf("%s of %d at once, %d networks", r.command, r.pods, r.count), map[bool]string{true: "s"}[r.count == 1])
}

// picture returns an SVG of the bursts: a bar to the median, and a line to the 99th percentile
// with a mark at the 95th.
func (p *page) picture() string {
	const left, width, line = 180, 520, 18.0
	var b strings.Builder
	y := 0.0
	text := func(class string, x, y float64, s string) {
		fmt.Fprintf(&b, "<text class=%q x=\"%.0f\" y=\"%.0f\">%s</text>\n", class, x, y, s)
	}
	for _, r := range p.results {
		if r.pods == 1 {
			continue
		}
		most := 0.0
		for _, row := range r.rows {
			most = max(most, row.p99)
		}
		y += 2 * line
		text("title", left, y-5, r.title()+", ms")
		for _, row := range r.rows {
			at := func(ms float64) float64 { return left + ms/most*width }
			class := map[bool]string{true: "floor", false: "ours"}[row.floor]
			text("name", left-8, y+13, row.name)
			fmt.Fprintf(&b, "<rect class=%q x=\"%d\" y=\"%.0f\" width=\"%.1f\" height=\"12\"/>\n", class, left, y+3, at(row.median)-left)
			fmt.Fprintf(&b, "<path d=\"M%.1f %.0fH%.1fM%.1f %.0fv8M%.1f %.0fv8\"/>\n", at(row.median), y+9, at(row.p99), at(row.p95), y+5, at(row.p99), y+5)
			text("value", at(row.p99)+6, y+13, number(row.p99))
			y += line
		}
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" font-family="sans-serif" font-size="12">
<style>
text { fill: #333 } .name { text-anchor: end } .title { font-weight: bold }
.floor { fill: #999 } .ours { fill: #4a7ebb } path { stroke: #333; fill: none }
@media (prefers-color-scheme: dark) { text { fill: #ddd } path { stroke: #ddd } }
</style>
%s</svg>
`, left+width+60, y+line, b.String())
}

// section replaces what a file has between the lines <!-- name --> and <!-- end -->.
func section(tb testing.TB, file, name, text string) {
	tb.Helper()
	old, err := os.ReadFile(file)
	nodetest.OK(tb, err)
	begin := "<!-- " + name + " -->\n"
	whole := regexp.MustCompile("(?s)" + begin + ".*?<!-- end -->")
	if len(whole.FindAll(old, -1)) != 1 {
		tb.Fatalf("%s does not have one section %q", file, name)
	}
	next := whole.ReplaceAllLiteral(old, []byte(begin+text+"<!-- end -->"))
	nodetest.OK(tb, os.WriteFile(file, next, 0o600))
}

// benchPage has the results.
const benchPage = "BENCH.md"

// write writes the results into BENCH.md, its picture and the README of the repository.
func (p *page) write(tb testing.TB) {
	tb.Helper()
	where := machine(tb)
	section(tb, benchPage, "machine", where)
	section(tb, benchPage, "commands", p.commands())
	section(tb, benchPage, "bursts", p.bursts())
	nodetest.OK(tb, os.WriteFile("bench.svg", []byte(p.picture()), 0o600))
	section(tb, "../../README.md", "make bench", where+"\n"+p.commands(benchCase{"bridge", 1, 1}, benchCase{"bridge", 8, 1}, benchCase{"noop", 1, 1}, benchCase{"noop", 8, 1}))
}

// machine says on what the results were measured. Machines differ most in how long they take to
// start a program.
func machine(tb testing.TB) string {
	tb.Helper()
	var u unix.Utsname
	_ = unix.Uname(&u)
	linux, _, _ := strings.Cut(unix.ByteSliceToString(u.Release[:]), "-")
	var took []time.Duration
	for range 31 {
		start := time.Now()
		nodetest.OK(tb, exec.CommandContext(tb.Context(), "true").Run())
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	return fmt.Sprintf("%s, %d CPUs, Linux %s, %s; the program true takes %s ms.\n",
		time.Now().Format("January 2006"), runtime.NumCPU(), linux, runtime.Version(), number(percentile(took, 0.5)))
}

// The tables and the picture of two contenders.
func TestPageOfTheBenchmarksShowsEachContender(t *testing.T) {
	t.Parallel()
	took := func(each ...time.Duration) map[string]*cost {
		return map[string]*cost{"ADD": {each, 30 * time.Millisecond, 7000}, "DEL": {each, 30 * time.Millisecond, 7000}}
	}
	all := []*entrant{
		{contender: contender{label: "ours"}, node: &node{Node: &process.Node{ID: 2}}, costs: took(9*time.Millisecond, 6*time.Millisecond, 3*time.Millisecond)},
		{contender: contender{label: "libcni", floor: true}, node: &node{Node: &process.Node{ID: 1}}, costs: took(2*time.Millisecond, 4*time.Millisecond, 6*time.Millisecond)},
	}
	var p page
	p.add(benchCase{"bridge", 1, 1}, all)
	p.add(benchCase{"noop", 8, 1}, all)
	p.add(benchCase{"bridge", 4, 3}, all)
	nodetest.Equal(t, "commands", p.commands(benchCase{"bridge", 1, 1}), `| | libcni | ours |
|---|--:|--:|
| ADD of one bridge network | 4.00 | 6.00 |
| DEL of one bridge network | 4.00 | 6.00 |
`)
	nodetest.Equal(t, "bursts", p.bursts(), `| | | median | p95 | p99 | p95 by the floor's | p99 by the floor's | CPU a pod | peak memory, MB |
|---|---|--:|--:|--:|--:|--:|--:|--:|
| ADD of 3 at once, 4 networks | libcni | 4.00 | 6.00 | 6.00 | 1.00 | 1.00 | 10.0 | 7.0 |
|  | ours | 6.00 | 9.00 | 9.00 | 1.50 | 1.50 | 10.0 | 7.0 |
| DEL of 3 at once, 4 networks | libcni | 4.00 | 6.00 | 6.00 | 1.00 | 1.00 | 10.0 | 7.0 |
|  | ours | 6.00 | 9.00 | 9.00 | 1.50 | 1.50 | 10.0 | 7.0 |
`)
	for _, want := range []string{`<text class="name" x="172" y="49">libcni</text>`, `<rect class="ours" x="180" y="57" width="346.7" height="12"/>`, "prefers-color-scheme: dark"} {
		if !strings.Contains(p.picture(), want) {
			t.Errorf("the picture lacks %s:\n%s", want, p.picture())
		}
	}
}
