package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/lab/host"
	"github.com/metacni/metacni/internal/hosttest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/scratch"
)

// newBenchNode returns a node whose records and leases are on a disk, as far as the directory
// for temporary files is: in memory a sync costs nothing.
func newBenchNode(b *testing.B) *node {
	b.Helper()
	hosttest.Need(b)
	return nodeIn(b, os.TempDir())
}

// A contender is a meta-plugin, or one way to configure it.
type contender struct {
	name string
	conf func(n *node, delegates []object) object
}

// contenders returns the meta-plugins to compare, with the one of METACNI_PEER, NAME=PATH, which
// is configured as Multus is.
func contenders(b *testing.B) []contender {
	b.Helper()
	typed := func(name string, more object) contender {
		return contender{name, func(n *node, delegates []object) object {
			conf := object{"type": name, "cniDir": n.file(name), "cacheDir": n.file("cache")} // of Multus, and of testdata/libcni
			return n.with(n.with(n.multinet("1.0.0", delegates...), conf), more)
		}}
	}
	parallel := typed("multinet", object{"parallel": true})
	parallel.name = "parallel"
	daemon := contender{"multinetd", func(n *node, delegates []object) object {
		n.mkdir("d", "relay")
		nodetest.OK(n, os.Link(built("resident"), n.file("relay", "10-resident")))
		n.daemon(daemonConf{keys: object{"relayDir": n.file("relay"), "binDir": n.bin, "logLevel": "error"}})
		return n.thick("1.0.0", delegates...)
	}}
	all := []contender{typed("libcni", nil), typed("multinet", nil), parallel, daemon}
	if name, path, ok := strings.Cut(os.Getenv("METACNI_PEER"), "="); ok {
		if err := os.Symlink(path, built(name)); err != nil && !os.IsExist(err) {
			b.Fatal(err)
		}
		all = append(all, typed(name, nil))
	}
	return all
}

// delegates returns configurations of count plugins of a type.
func (n *node) delegates(typ string, count int) []object {
	list := make([]object, count)
	for i := range list {
		switch typ {
		case "bridge":
			list[i] = n.bridge(i)
			list[i]["ipam"].(object)["dataDir"] = n.file("leases")
		default:
			list[i] = object{"type": typ, "addresses": []string{"192.0.2.2/24"}} // those of resident
		}
		n.with(list[i], object{"name": n.name("net-" + strconv.Itoa(i) + "-"), "cniVersion": "1.0.0"})
	}
	return list
}

// times is how long the commands of a benchmark have taken in all.
type times map[string]time.Duration

// measure runs a command, which must succeed.
func (ts times) measure(n *node, command string, p *pod, extras ...extra) {
	n.Helper()
	a := n.ok(command, p, extras...)
	ts[command] += a.took
	if command == "ADD" {
		p.result = a.stdout
	}
}

// report reports the time of each command, a round.
func (ts times) report(b *testing.B) {
	b.Helper()
	b.ReportMetric(0, "ns/op")
	for command, all := range ts {
		b.ReportMetric(float64(all.Microseconds())/1000/float64(b.N), command+"-ms")
	}
}

// BenchmarkCommands measures an ADD and the DEL after it, from before the fork until wait
// returns, each time of another container: of plugins that do nothing, which shows the
// meta-plugin's own cost, of bridge with host-local, and of examples/resident, which multinetd
// need not execute. The first round does not count.
func BenchmarkCommands(b *testing.B) {
	all := contenders(b)
	for _, typ := range []string{"noop", "bridge", "resident"} {
		for _, count := range []int{1, 8} {
			for _, c := range all {
				b.Run(fmt.Sprintf("delegates=%s/n=%d/program=%s", typ, count, c.name), func(b *testing.B) {
					n := newBenchNode(b)
					conf := c.conf(n, n.delegates(typ, count))
					round := func(ts times) {
						p := n.pod(conf)
						ts.measure(n, "ADD", p)
						ts.measure(n, "DEL", p)
						nodetest.OK(n, host.RemoveNS(p.netns))
					}
					round(times{})
					ts := times{}
					for b.Loop() {
						round(ts)
					}
					ts.report(b)
				})
			}
		}
	}
}

// BenchmarkPodsAtOnce measures how long a node takes for all of its pods, as after a reboot.
func BenchmarkPodsAtOnce(b *testing.B) {
	pods := 110
	if testing.Short() {
		pods = 3
	}
	for _, c := range contenders(b) {
		b.Run("program="+c.name, func(b *testing.B) {
			n := newBenchNode(b)
			conf := c.conf(n, n.delegates("noop", 2))
			ts := times{}
			for b.Loop() {
				all := n.newPods(pods, func() object { return conf })
				for _, command := range []string{"ADD", "DEL"} {
					start := time.Now()
					n.allOK(command, all)
					ts[command] += time.Since(start)
				}
			}
			ts.report(b)
		})
	}
}

// BenchmarkAmongRecords measures commands among valid records of other containers.
func BenchmarkAmongRecords(b *testing.B) {
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
				nodetest.OK(n, host.RemoveNS(p.netns))
			}
			ts.report(b)
		})
	}
}

// record records attachments of count containers, which it returns, with the library.
func (n *node) record(count int) []*pod {
	n.Helper()
	network := nodetest.Parse(`{"cniVersion":"1.1.0","name":"` + n.name("net-0-") + `","plugins":[{"type":"noop","bridge":"br0","isGateway":true,"ipMasq":true,` +
		`"ipam":{"type":"host-local","ranges":[[{"subnet":"10.0.0.0/16","gateway":"10.0.0.1"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}`)
	plugin := delegatetest.Result(&types100.Result{
		CNIVersion: "1.1.0",
		Interfaces: []*types100.Interface{{Name: "br0", Mac: "02:00:00:00:00:01"}, {Name: "eth0", Mac: "02:00:00:00:00:03", Sandbox: "/run/netns/pod"}},
		IPs:        []*types100.IPConfig{{Interface: types100.Int(1), Address: net.IPNet{IP: net.IPv4(10, 0, 0, 2).To4(), Mask: net.CIDRMask(16, 32)}}},
	})
	m := &lifecycle.Manager{Dir: n.file("state"), Invoker: &delegate.Invoker{Exec: &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"noop": plugin}}}}
	pods := make([]*pod, count)
	for i := range pods {
		p := &pod{id: fmt.Sprintf("%064x", i+1), netns: filepath.Join("/run/netns", strconv.Itoa(i)), ifname: "eth0"}
		a := delegate.Attachment{Network: network, ContainerID: p.id, NetNS: p.netns, IfName: p.ifname, Args: "IgnoreUnknown=1;K8S_POD_NAME=pod-" + strconv.Itoa(i)}
		_, err := m.Add(n.Context(), scratch.Key{Network: n.name("multi"), ContainerID: p.id, IfName: p.ifname}, lifecycle.Transaction{Plan: lifecycle.Plan(a)})
		nodetest.OK(n, err)
		pods[i] = p
	}
	unix.Sync() // otherwise the sync of the first ADD would write all of them
	return pods
}
