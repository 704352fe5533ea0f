package runtimes

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/metacni/metacni/examples/lab/host"
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
	name := fmt.Sprintf("n%dp%d", n.number, k)
	p := &pod{n: n, config: &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Namespace: "default", Name: name, Uid: "uid-" + name},
		Hostname: name,
		Labels:   map[string]string{podLabel: name},
		Linux:    &cri.LinuxPodSandboxConfig{CgroupParent: "/" + os.Getenv(cgroupEnv)},
		PortMappings: []*cri.PortMapping{{
			Protocol: cri.Protocol_TCP, ContainerPort: 80, HostPort: 20000 + 256*int32(n.number) + k,
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
	if err != nil {
		p.n.t.Fatal(err)
	}
	var info struct {
		PID         int
		RuntimeSpec struct {
			Linux struct {
				Namespaces []struct{ Type, Path string }
			}
		}
	}
	if err := json.Unmarshal([]byte(got.GetInfo()["info"]), &info); err != nil {
		p.n.t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
