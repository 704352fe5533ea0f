package runtimes

import (
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/metacni/metacni/internal/dump"
)

// bridge returns the configuration of the node's i'th bridge, which has an address range of
// its own.
func (n *node) bridge(i int) object {
	return object{
		"cniVersion": "1.1.0", "type": "bridge", "bridge": fmt.Sprintf("br%d-%d", n.number, i), "isGateway": true,
		"ipam": object{
			"type": "host-local", "subnet": fmt.Sprintf("10.%d.%d.0/24", n.number, i), "dataDir": n.file("leases"),
			"routes": []object{{"dst": fmt.Sprintf("10.%d.%d.0/24", 200+i, n.number)}},
		},
	}
}

// address is the k'th address of the node's i'th bridge. The first is the node's.
func (n *node) address(i, k int) string { return fmt.Sprintf("10.%d.%d.%d", n.number, i, k) }

// chain returns a network of plugins.
func (n *node) chain(name string, plugins ...object) object {
	return object{"cniVersion": "1.1.0", "name": name, "plugins": plugins}
}

// primary is the network of the node without a meta-plugin.
func (n *node) primary() object {
	bridge := n.bridge(0)
	bridge["isDefaultGateway"] = true
	return n.chain(n.primaryName(), bridge,
		object{"type": "portmap", "capabilities": object{"portMappings": true}}, object{"type": "firewall"})
}

func (n *node) primaryName() string { return fmt.Sprintf("primary%d", n.number) }

func (n *node) writeJSON(name string, v any) {
	n.t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		n.t.Fatal(err)
	}
	n.write(name, string(text))
}

// leases lists the addresses that are reserved on the node.
func (n *node) leases() []string {
	n.t.Helper()
	return slices.DeleteFunc(n.glob("leases/*/*"), func(file string) bool { return net.ParseIP(filepath.Base(file)) == nil })
}

// addresses lists the addresses that are reserved on the node.
func (n *node) addresses() (all []string) {
	n.t.Helper()
	for _, file := range n.leases() {
		all = append(all, filepath.Base(file))
	}
	slices.Sort(all)
	return all
}

func (n *node) glob(pattern string) []string {
	n.t.Helper()
	files, err := filepath.Glob(n.file(pattern))
	if err != nil {
		n.t.Fatal(err)
	}
	return slices.DeleteFunc(files, func(file string) bool { return strings.HasPrefix(filepath.Base(file), ".") })
}

// rules lists the rules of iptables for pods of the node, except those for these pods. A rule
// for a pod has its address, its port on the node or the ID of its sandbox.
func (n *node) rules(except ...*pod) (all []string) {
	n.t.Helper()
	out, err := exec.CommandContext(n.t.Context(), "iptables-save").Output()
	if err != nil {
		n.t.Fatal(err)
	}
	var theirs []string
	for _, p := range except {
		theirs = append(theirs, p.id, fmt.Sprintf("--dport %d ", p.hostPort()))
		for _, a := range p.addresses() {
			theirs = append(theirs, a+"/32", a+":")
		}
	}
	for line := range strings.Lines(string(out)) {
		contains := func(text string) bool { return strings.Contains(line, text) }
		if contains(fmt.Sprintf(" 10.%d.", n.number)) && !slices.ContainsFunc(theirs, contains) {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all
}

// ports lists the node's interfaces that are ports of its bridges.
func (n *node) ports() (all []string) {
	n.t.Helper()
	links, err := dump.Whole(netlink.LinkList)
	if err != nil {
		n.t.Fatal(err)
	}
	bridges := map[int]string{}
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, fmt.Sprintf("br%d-", n.number)) {
			bridges[l.Attrs().Index] = l.Attrs().Name
		}
	}
	for _, l := range links {
		if bridge := bridges[l.Attrs().MasterIndex]; bridge != "" {
			all = append(all, bridge+" "+l.Attrs().Name)
		}
	}
	return all
}

// wantRunning fails the test unless these pods answer, and the node has the leases, records,
// interfaces and rules of them alone.
func (n *node) wantRunning(pods ...*pod) {
	n.t.Helper()
	var leases, records []string
	for _, p := range pods {
		p.answers()
		leases = append(leases, p.addresses()...)
		records = append(records, p.id+" eth0 added")
	}
	slices.Sort(leases)
	slices.Sort(records)
	same(n.t, "leases", leases, n.addresses())
	same(n.t, "ports of bridges", len(leases), len(n.ports()))
	same(n.t, "records", records, n.records())
	same(n.t, "rules of no pod", nil, n.rules(pods...))
}

// wantNothing fails the test if the node has anything left of a pod.
func (n *node) wantNothing() {
	n.t.Helper()
	same(n.t, "leases", nil, n.leases())
	same(n.t, "ports of bridges", nil, n.ports())
	same(n.t, "rules", nil, n.rules())
	same(n.t, "records", nil, n.glob("state/*/*"))
	same(n.t, "queued DELs", nil, n.glob("queue/*"))
	same(n.t, "namespaces", nil, n.namespaces())
	same(n.t, "sandboxes", nil, n.sandboxes())
	same(n.t, "entries in the cache of libcni", nil, n.cached())
}

// cached lists what libcni keeps about the node's sandboxes for containerd.
func (n *node) cached() []string {
	n.t.Helper()
	files, err := filepath.Glob("/var/lib/cni/results/*")
	if err != nil {
		n.t.Fatal(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.DeleteFunc(files, func(file string) bool {
		return !slices.ContainsFunc(n.ids, func(id string) bool { return strings.Contains(file, id) })
	})
}

// netnsDir is where containerd mounts network namespaces.
const netnsDir = "run/io.containerd.grpc.v1.cri/netns"

// namespaces lists the network namespaces that containerd has made and not removed.
func (n *node) namespaces() []string {
	n.t.Helper()
	return n.glob(netnsDir + "/*")
}

// sandboxes lists the sandboxes that containerd has, in any state.
func (n *node) sandboxes() (all []string) {
	n.t.Helper()
	got, err := n.ListPodSandbox(n.t.Context(), &cri.ListPodSandboxRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, s := range got.GetItems() {
		all = append(all, s.GetId())
	}
	return all
}

// same fails the test unless want and got are equal. Nil and empty slices are.
func same[T any](t testing.TB, what string, want, got T) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
