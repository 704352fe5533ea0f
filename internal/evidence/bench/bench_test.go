package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/conform/host"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/thick/wire"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
	"github.com/metacni/metacni/scratch"
)

type object = process.Object

var (
	update = flag.Bool("update", false, "write README.md and the table in the README of the repository")
	peers  = process.Peers()
)

func TestMain(m *testing.M) {
	os.Exit(host.Tests{Build: build}.Main(m))
}

// build builds the contenders and the plugins, as released.
func build(ctx context.Context, dir string) error {
	const root, e2e = "../../..", "../../e2e"
	const plugins = "github.com/containernetworking/plugins/plugins/"
	for module, packages := range map[string][]string{
		root:                        {"./examples/resident"},
		root + "/examples/multinet": {"./cmd/..."},
		e2e:                         {plugins + "main/bridge", plugins + "ipam/host-local", "./testdata/noop"},
		".":                         {"./testdata/libcni"},
	} {
		if err := (process.Build{Env: []string{"CGO_ENABLED=0"}, Args: packages}).Run(ctx, module, dir); err != nil {
			return err
		}
	}
	return nil
}

// built returns the path of a program.
func built(name string) string { return filepath.Join(host.Programs(), name) }

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
	node
	conf   object           // of its network
	served *process.Process // the daemon, or nil
	api    *kubetest.Server // of the daemon's cluster, or nil
	costs  map[string]*cost // by command
}

// contenders returns the meta-plugins to compare, with those of -peer, which are configured as
// Multus is.
func contenders(tb testing.TB) []contender {
	tb.Helper()
	typed := func(typ string, keys object) func(*entrant, []object) object {
		return func(e *entrant, delegates []object) object {
			conf := e.multinet("1.0.0", delegates...)
			maps.Copy(conf, object{"type": typ, "cniDir": e.File(typ), "cacheDir": e.File("cache")}) // of Multus, and of testdata/libcni
			maps.Copy(conf, keys)
			return conf
		}
	}
	daemon := func(cluster bool) func(*entrant, []object) object {
		return func(e *entrant, delegates []object) object {
			e.daemon(cluster)
			conf := e.multinet("1.0.0", delegates...)
			maps.Copy(conf, object{"type": "multinet-shim", "daemonSocketDir": e.File("d"), "delQueueDir": e.File("queue"), "delQueueWait": "0s"})
			return conf
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

// daemon starts multinetd, in a cluster or not, and waits until it takes ADDs. It executes no
// resident plugin.
func (e *entrant) daemon(cluster bool) {
	e.Helper()
	e.Mkdir("d", "relay")
	nodetest.OK(e, os.Link(built("resident"), e.File("relay", "10-resident")))
	keys := object{
		"socketDir": e.File("d"), "queueDir": e.File("queue"), "cniDir": e.File("state"),
		"relayDir": e.File("relay"), "binDir": e.Bin, "logFormat": "json", "logLevel": "error",
	}
	if cluster {
		e.api = kubetest.NewServer(scheme.Codecs.UniversalDeserializer().Decode)
		e.Cleanup(e.api.Close)
		kubeconfig, err := e.api.Kubeconfig(e.Dir)
		nodetest.OK(e, err)
		keys["kubeconfig"], keys["nodeName"] = kubeconfig, "n1"
	}
	e.Write(keys, "daemon.json")
	cmd := exec.CommandContext(e.Context(), built("multinetd"), "--config", e.File("daemon.json"))
	cmd.Env = []string{"PATH=" + process.Path}
	e.served = e.Serve(e.File("daemon.log"), cmd)
	e.Await(e.served, e.File("d", multinet.SocketName), wire.PathReady)
}

// A node is one on which a contender runs.
type node struct{ *process.Node }

// newNode returns a node whose records and leases are on a disk, as far as the directory for
// temporary files is: in memory a sync costs nothing.
func newNode(b *testing.B) node {
	b.Helper()
	return node{process.NewNode(b, os.TempDir())}
}

// multinet returns a configuration of multinet.
func (n node) multinet(version string, delegates ...object) object {
	return object{
		"cniVersion": version, "name": n.Numbered("multi"), "type": "multinet",
		"capabilities": object{"io.kubernetes.cri.pod-annotations": true},
		"delegates":    delegates,
		"cniDir":       n.File("state"), "confDir": n.File("net.d"), "binDir": n.Bin,
	}
}

// start starts a command for p, whose configuration gets more keys.
func (n node) start(command string, p *process.Pod, more object) *process.Command {
	n.Helper()
	conf := maps.Clone(p.Conf)
	maps.Copy(conf, more)
	if p.Result != nil && command == "DEL" {
		conf["prevResult"] = p.Result
	}
	stdin, err := json.Marshal(conf)
	nodetest.OK(n, err)
	return n.Exec(built(fmt.Sprint(conf["type"])), n.Env(command, p), stdin)
}

// delegates returns configurations of count plugins of a type.
func (n node) delegates(typ string, count int) []object {
	list := make([]object, count)
	for i := range list {
		switch typ {
		case "bridge":
			list[i] = n.Bridge(i)
			maps.Copy(list[i]["ipam"].(object), object{"routes": []object{{"dst": "0.0.0.0/0"}}, "dataDir": n.File("leases")})
		default:
			list[i] = object{"type": typ, "addresses": []string{"192.0.2.2/24"}} // those of resident
		}
		maps.Copy(list[i], object{"name": n.Numbered("net-" + strconv.Itoa(i) + "-"), "cniVersion": "1.0.0"})
	}
	return list
}

// times is how long the commands of a benchmark have taken in all.
type times map[string]time.Duration

// measure runs a command, which must succeed.
func (ts times) measure(n node, command string, p *process.Pod, more object) {
	n.Helper()
	a := n.Wait(n.start(command, p, more))
	if a.Code != 0 {
		n.Fatalf("%s %s: %s (stderr %q)", command, p.ID, a.Stdout, a.Stderr)
	}
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

// processorTime returns the processor time of a daemon and its plugins.
func processorTime(daemon *process.Process) (all time.Duration) {
	for _, ticks := range nodetest.Stat(daemon.Cmd.Process.Pid)[11:15] {
		n, _ := strconv.Atoi(ticks)
		all += time.Duration(n) * 10 * time.Millisecond
	}
	return all
}

// burst runs a command for all pods at once.
func (e *entrant) burst(command string, pods []*process.Pod) cost {
	c := cost{}
	if e.served != nil {
		c.cpu -= processorTime(e.served)
	}
	places := make(chan struct{}, cmp.Or(e.once, len(pods)))
	var mu sync.Mutex
	var all sync.WaitGroup
	start := time.Now()
	for i, p := range pods {
		places <- struct{}{}
		r := e.start(command, p, nil)
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
		c.cpu += processorTime(e.served)
		c.memory = nodetest.Status(e.served.Cmd.Process.Pid, "VmHWM")
	}
	return c
}

// peak polls a process until the process ends, and returns the last peak of its resident set, in
// kB. The kernel's own account includes the process that has started it.
func peak(pid int) (kB int) {
	for {
		now := nodetest.Status(pid, "VmHWM")
		if now == 0 {
			return kB
		}
		kB = now
		time.Sleep(2 * time.Millisecond)
	}
}

// round attaches pods and detaches them, and adds what that has cost.
func (e *entrant) round(pods int) {
	all := make([]*process.Pod, pods)
	for i := range all {
		p := e.Pod(e.conf)
		all[i] = p
		if e.api != nil {
			kubetest.Put(e.api, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: types.UID(p.UID)},
				Spec:       corev1.PodSpec{NodeName: "n1"},
			})
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
// round, and the first round does not count. With -update it writes README.md and the table in
// the README of the repository.
func BenchmarkCommands(b *testing.B) {
	host.Need(b)
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
				e := &entrant{contender: who, node: newNode(b), costs: map[string]*cost{}}
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
// it writes the table in README.md.
func BenchmarkAmongRecords(b *testing.B) {
	table := "| records | ADD | DEL | GC | list |\n|--:|--:|--:|--:|--:|\n"
	for _, count := range []int{0, 10_000} {
		if testing.Short() {
			count = min(count, 10)
		}
		b.Run(fmt.Sprintf("records=%d", count), func(b *testing.B) {
			n := newNode(b)
			conf := n.multinet("1.1.0", n.delegates("noop", 1)...)
			valid := n.record(count)
			ts := times{}
			for b.Loop() {
				p := n.Pod(conf)
				ts.measure(n, "ADD", p, nil)
				ts.measure(n, "DEL", p, nil)
				ts.measure(n, "GC", p, valid)
				start := time.Now()
				a := n.Exec(built("multinet"), map[string]string{"PATH": process.Path}, nil, "list", "--dir", n.File("state")).Wait()
				if ts["list"] += time.Since(start); a.Code != 0 {
					n.Fatalf("list: %s%s", a.Stdout, a.Stderr)
				}
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
		nodetest.Section(b, ownPage, "records", table)
	}
}

// record records attachments of count containers with the library. It returns the keys with which
// a GC says that all of them are valid.
func (n node) record(count int) object {
	n.Helper()
	network := nodetest.Parse(`{"cniVersion":"1.1.0","name":"` + n.Numbered("net-0-") + `","plugins":[{"type":"noop","bridge":"br0","isGateway":true,"ipMasq":true,` +
		`"ipam":{"type":"host-local","ranges":[[{"subnet":"10.0.0.0/16","gateway":"10.0.0.1"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}`)
	plugin := delegatetest.Result(&types100.Result{
		CNIVersion: "1.1.0",
		Interfaces: []*types100.Interface{{Name: "br0", Mac: "02:00:00:00:00:01"}, {Name: "eth0", Mac: "02:00:00:00:00:03", Sandbox: "/run/netns/pod"}},
		IPs:        []*types100.IPConfig{{Interface: new(1), Address: net.IPNet{IP: net.IPv4(10, 0, 0, 2).To4(), Mask: net.CIDRMask(16, 32)}}},
	})
	m := &lifecycle.Manager{Dir: n.File("state"), Invoker: &delegate.Invoker{Exec: &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"noop": plugin}}}}
	valid := make([]object, count)
	for i := range valid {
		id, netns := fmt.Sprintf("%064x", i+1), filepath.Join("/run/netns", strconv.Itoa(i))
		a := delegate.Attachment{Network: network, ContainerID: id, NetNS: netns, IfName: "eth0", Args: "IgnoreUnknown=1;K8S_POD_NAME=pod-" + strconv.Itoa(i)}
		_, err := m.Add(n.Context(), scratch.Key{Network: n.Numbered("multi"), ContainerID: id, IfName: "eth0"}, lifecycle.Transaction{Plan: lifecycle.Plan(a)})
		nodetest.OK(n, err)
		valid[i] = object{"containerID": id, "ifname": "eth0"}
	}
	unix.Sync() // otherwise the sync of the first ADD would write all of them
	return object{"cni.dev/valid-attachments": valid, "cni.dev/attachments": valid}
}
