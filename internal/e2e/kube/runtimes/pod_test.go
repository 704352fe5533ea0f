package runtimes

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/metacni/metacni/delegate/conform/host"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// podLabel has the name of the pod, for the kubelet to find its sandboxes.
const podLabel = "pod"

// A pod is what the kubelet has of a pod.
type pod struct {
	n      *node
	config *cri.PodSandboxConfig
	id     string // of its sandbox
	netns  string
	pid    int
}

// newPod returns a pod with a port on the node, which does not run yet. Its annotation
// selects networks, or none.
func (n *node) newPod(networks string) *pod {
	k := n.pods.Add(1)
	name := fmt.Sprintf("n%dp%d", n.host.ID, k)
	p := &pod{n: n, config: &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Namespace: "default", Name: name, Uid: "uid-" + name},
		Hostname: name,
		Labels:   map[string]string{podLabel: name},
		Linux:    &cri.LinuxPodSandboxConfig{CgroupParent: "/" + os.Getenv(cgroupEnv)},
		PortMappings: []*cri.PortMapping{{
			Protocol: cri.Protocol_TCP, ContainerPort: 80, HostPort: 20000 + 256*int32(n.host.ID) + k,
		}},
	}}
	if networks != "" {
		p.config.Annotations = map[string]string{"k8s.v1.cni.cncf.io/networks": networks}
	}
	return p
}

// try runs the pod. After an error it may be tried again, with a new sandbox.
func (p *pod) try() error {
	got, err := p.n.RunPodSandbox(context.WithoutCancel(p.n.t.Context()), &cri.RunPodSandboxRequest{Config: p.config})
	if err != nil {
		return err
	}
	p.id = got.GetPodSandboxId()
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	p.n.ids = append(p.n.ids, p.id)
	return nil
}

// run runs the pod.
func (p *pod) run() *pod {
	p.n.t.Helper()
	if err := p.try(); err != nil {
		p.n.t.Fatalf("RunPodSandbox of %s: %v", p.name(), err)
	}
	p.look()
	return p
}

// look finds out which process and which network namespace the pod's sandbox has.
func (p *pod) look() {
	p.n.t.Helper()
	got, err := p.n.PodSandboxStatus(p.n.t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: p.id, Verbose: true})
	nodetest.OK(p.n.t, err)
	var info struct {
		PID         int
		RuntimeSpec struct {
			Linux struct {
				Namespaces []struct{ Type, Path string }
			}
		}
	}
	nodetest.OK(p.n.t, json.Unmarshal([]byte(got.GetInfo()["info"]), &info))
	for _, ns := range info.RuntimeSpec.Linux.Namespaces {
		if ns.Type == "network" && path.IsAbs(ns.Path) {
			p.pid, p.netns = info.PID, ns.Path
			return
		}
	}
	p.n.t.Fatalf("no network namespace in %v", got)
}

func (p *pod) name() string { return p.config.GetMetadata().GetName() }

// stop stops the pod and removes its sandbox, as the kubelet does.
func (p *pod) stop() {
	p.n.t.Helper()
	ctx := context.WithoutCancel(p.n.t.Context())
	_, err := p.n.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.id})
	if err == nil {
		_, err = p.n.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.id})
	}
	if err != nil {
		p.n.t.Fatalf("stop %s: %v", p.name(), err)
	}
}

// answers waits until the pod answers at its port on the node.
func (p *pod) answers() {
	p.n.t.Helper()
	address := net.JoinHostPort(p.n.address(0, 1), fmt.Sprint(p.hostPort()))
	var last error
	eventually(p.n.t, func() bool { // its program may have just been started
		last = p.asks(address)
		return last == nil
	}, &last)
}

// asks fails unless the pod answers at an address.
func (p *pod) asks(address string) error {
	c, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(p.n.t.Context(), "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	said := make([]byte, 64)
	k, err := c.Read(said)
	if err != nil || string(said[:k]) != p.name() {
		return fmt.Errorf("%s: %q answers: %v", p.name(), said[:k], err)
	}
	return nil
}

func (p *pod) hostPort() int32 { return p.config.GetPortMappings()[0].GetHostPort() }

// addresses lists the pod's addresses.
func (p *pod) addresses() (all []string) {
	p.n.t.Helper()
	for _, i := range p.interfaces() {
		all = append(all, strings.Fields(i)[1:]...)
	}
	return all
}

// names lists the names of the pod's interfaces.
func (p *pod) names() (all []string) {
	p.n.t.Helper()
	for _, i := range p.interfaces() {
		name, _, _ := strings.Cut(i, " ")
		all = append(all, name)
	}
	return all
}

// interfaces lists the pod's interfaces with their addresses.
func (p *pod) interfaces() []string {
	p.n.t.Helper()
	return interfaces(p.n.t, p.netns)
}

func interfaces(t testing.TB, netns string) (all []string) {
	t.Helper()
	got, err := host.Interfaces(netns)
	nodetest.OK(t, err)
	for _, i := range got {
		if i.Name == "lo" {
			continue
		}
		text := i.Name
		for _, a := range i.Addresses {
			text += " " + a.Addr().String()
		}
		all = append(all, text)
	}
	return all
}

// bridge returns the configuration of the node's i'th bridge, which has an address range of
// its own.
func (n *node) bridge(i int) object {
	conf := n.host.Bridge(i)
	conf["cniVersion"] = "1.1.0"
	conf["ipam"].(object)["dataDir"] = n.file("leases")
	conf["ipam"].(object)["routes"] = []object{{"dst": fmt.Sprintf("10.%d.%d.0/24", 200+i, n.host.ID)}}
	return conf
}

// address is the k'th address of the node's i'th bridge. The first is the node's.
func (n *node) address(i, k int) string { return fmt.Sprintf("10.%d.%d.%d", n.host.ID, i, k) }

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

func (n *node) primaryName() string { return fmt.Sprintf("primary%d", n.host.ID) }

func (n *node) writeJSON(name string, v any) {
	n.t.Helper()
	n.host.Write(v, name)
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
	nodetest.OK(n.t, err)
	return slices.DeleteFunc(files, func(file string) bool { return strings.HasPrefix(filepath.Base(file), ".") })
}

// rules lists the rules of iptables for pods of the node, except those for these pods. A rule
// for a pod has its address, its port on the node or the ID of its sandbox.
func (n *node) rules(except ...*pod) (all []string) {
	n.t.Helper()
	var theirs []string
	for _, p := range except {
		theirs = append(theirs, p.id, fmt.Sprintf("--dport %d ", p.hostPort()))
		for _, a := range p.addresses() {
			theirs = append(theirs, a+"/32", a+":")
		}
	}
	return slices.DeleteFunc(n.host.Rules(n.host.Net(0)+".", n.host.Net(1)+".", n.host.Net(2)+"."), func(line string) bool {
		return slices.ContainsFunc(theirs, func(text string) bool { return strings.Contains(line+" ", text) })
	})
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
	nodetest.Equal(n.t, "leases", n.addresses(), leases)
	nodetest.Equal(n.t, "ports of bridges", len(n.host.Ports()), len(leases))
	nodetest.Equal(n.t, "records", n.records(), records)
	nodetest.Equal(n.t, "rules of no pod", n.rules(pods...), nil)
}

// wantNothing fails the test if the node has anything left of a pod.
func (n *node) wantNothing() {
	n.t.Helper()
	nodetest.Equal(n.t, "leases", n.leases(), nil)
	nodetest.Equal(n.t, "ports of bridges", n.host.Ports(), nil)
	nodetest.Equal(n.t, "rules", n.rules(), nil)
	nodetest.Equal(n.t, "records", n.glob("state/*/*"), nil)
	nodetest.Equal(n.t, "queued DELs", n.glob("queue/*"), nil)
	nodetest.Equal(n.t, "namespaces", n.namespaces(), nil)
	nodetest.Equal(n.t, "sandboxes", n.sandboxes(), nil)
	nodetest.Equal(n.t, "entries in the cache of libcni", n.cached(), nil)
}

// cached lists what libcni keeps about the node's sandboxes for containerd.
func (n *node) cached() []string {
	n.t.Helper()
	files, err := filepath.Glob("/var/lib/cni/results/*")
	nodetest.OK(n.t, err)
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
	nodetest.OK(n.t, err)
	for _, s := range got.GetItems() {
		all = append(all, s.GetId())
	}
	return all
}
