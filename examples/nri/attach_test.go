package main

import (
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
)

// The annotation of a pod selects networks by name. Nothing is attached to pods on
// the host's network, or without a selection.
func TestAnnotationSelectsNetworks(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	x := plugins()
	p := n.start(x)
	plain := n.sandbox("plain", "")
	blank := n.sandbox("blank", "  ")
	hostless := n.sandbox("hostless", "blue")
	hostless.Linux.Namespaces = hostless.Linux.Namespaces[:1]
	broken := n.sandbox("broken", "this is [ no selection")
	broken.Linux.Namespaces = broken.Linux.Namespaces[:1]
	silent := n.sandbox("silent", "")
	silent.Linux = nil
	ours := n.sandbox("ours", "blue")
	ours.Linux.Namespaces[1].Path = "/proc/self/ns/net"
	n.mustRun(plain, blank, hostless, broken, silent, ours)
	nodetest.Equal(t, "calls", x.Trace(), nil)
	nodetest.Equal(t, "records", p.records(), nil)
	for _, s := range []*api.PodSandbox{plain, hostless, silent} {
		n.stop(s)
		n.remove(s)
	}
	both := n.sandbox("both", "blue,kube-system/red")
	n.mustRun(both)
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1", "ADD b net2"})
	n.stop(both)
	nodetest.Equal(t, "alive", x.Live(), nil)
}

// A pod that selects networks is refused if its event does not say where its network
// namespace is. It is not taken for a pod on the host's network.
func TestMissingNamespacesAreAnError(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(s *api.PodSandbox)
		want   string
	}{
		{"no Linux at all", func(s *api.PodSandbox) { s.Linux = nil }, "no namespaces"},
		{"no namespaces", func(s *api.PodSandbox) { s.Linux.Namespaces = nil }, "no namespaces"},
		{"no path, as of a pod with a user namespace", func(s *api.PodSandbox) { s.Linux.Namespaces[1].Path = "" }, "no path"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			x := plugins()
			p := n.start(x)
			s := n.sandbox("c1", "blue")
			tt.change(s)
			nodetest.Says(t, n.run(s), `"shop/web" (c1)`, "network namespace", tt.want, "code 8")
			n.stop(s)
			nodetest.Equal(t, "calls", x.Trace(), nil)
			nodetest.Equal(t, "records", p.records(), nil)
		})
	}
}

// If the reconciler cannot detach a pod, it logs that once, with the pod's name. The
// record has the name, because the runtime may have forgotten the pod.
func TestTheReconcilerNamesPods(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	x := plugins()
	x.Plugins["a"] = delegatetest.FailOn("DEL", 113, "not now", x.Plugins["a"])
	p := n.start(x)
	gone := n.sandbox("gone", "blue")
	n.mustRun(gone)
	n.forget(gone)
	p.disconnect()
	p.connected()
	if pass := p.pass(synchronized); pass.Failed != 1 {
		t.Errorf("pass %+v", pass)
	}
	for range 3 {
		p.kick()
		p.pass(func(Pass) bool { return true })
	}
	for _, line := range []string{
		"level=ERROR msg=reconciling pod=shop/web sandbox=gone",
		`level=WARN msg="stale attachment cannot be removed" container=gone network=nri ifname=eth0 pod=shop/web`,
	} {
		if got := p.log.Count(line); got != 1 {
			t.Errorf("%d lines %q: %s", got, line, p.log)
		}
	}
}

// A pod that cannot be attached is not started. The error names the pod, the network
// and the reason.
func TestPodThatCannotBeAttachedIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write(`{"cniVersion":"1.0.0","name":"absent","type":"absent"}`, "net.d", "absent.conf")
	n.write("{", "net.d", "broken.conf")
	x := plugins()
	p := n.start(x)
	for networks, words := range map[string][]string{
		"green":                       {"RunPodSandbox", `"shop/web" (c1)`, `"green"`, "net.d", "code 7"},
		"blue,green":                  {`"green"`, "code 7"},
		"../blue":                     {networksAnnotation, "code 7"},
		"blue@eth0":                   {"eth0", "code 7"},
		"blue@net1,red@net1":          {"net1", "code 7"},
		"blue@a/b":                    {"a/b", "code 7"},
		"[{":                          {networksAnnotation, "code 6"},
		"absent":                      {`"absent"`, "code 7"},
		`[{"name":"blue","mac":"x"}]`: {"mac", "code 7"},
		`[{"name":"blue","mac":"02:00:00:00:00:01"}]`:    {`"blue"`, `"mac"`, "capabilities", "code 7"},
		`[{"name":"blue","cni-args":{"":1}}`:             {"code 6"},
		`[{"name":"blue","default-route":["10.0.0.1"]}]`: {`"blue"`, "default-route", "code 7"},
	} {
		err := n.run(n.sandbox("c1", networks))
		if err == nil {
			t.Errorf("%s: the pod is started", networks)
			continue
		}
		nodetest.Says(t, err, words...)
	}
	if got := p.log.Count("level=ERROR msg=refused"); got < 12 || p.log.Count("shop/web") < got {
		t.Errorf("the log has %d pods that are refused:\n%s", got, p.log)
	}
	odd := n.sandbox("c1", "blue")
	odd.Name = "web;IP=10.0.0.9"
	nodetest.Says(t, n.run(odd), "K8S_POD_NAME", "more than one argument")
	bad := n.sandbox("c2", "blue")
	bad.Id = "../c2"
	nodetest.Says(t, n.run(bad), "code 4")
	n.stop(bad) // which nobody could have attached
	nodetest.Equal(t, "calls", x.Trace(), nil)
	nodetest.Equal(t, "running", n.running(), nil)
	nodetest.Equal(t, "records", p.records(), nil)
}

// Attachments are recorded by sandbox, because a pod may have several. Interface
// names and arguments are the usual ones.
func TestAttachmentsBelongToSandboxes(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write(`{"cniVersion":"1.0.0","name":"mac","type":"a","capabilities":{"mac":true},"args":{"cni":{"old":1}}}`, "net.d", "mac.conf")
	x := plugins()
	p := n.start(x, func(p *Plugin) {
		p.InterfaceNames = func(string) ([]string, error) { return []string{"lo", "eth0", "net2"}, nil }
	})
	first := n.sandbox("c1", "blue,red,blue@data0")
	second := n.sandbox("c2", `[{"name":"mac","mac":"02:00:00:00:00:01","cni-args":{"new":2}}]`) // of the same pod
	n.mustRun(first, second)
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1", "ADD b net3", "ADD a data0", "ADD a net1"})
	nodetest.Equal(t, "records", p.records(), []string{"c1 added", "c2 added"})
	calls := x.Calls()
	if c := calls[0]; c.ContainerID != "c1" || c.NetNS != n.file("netns", "c1") ||
		c.Args != "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=uid-1" ||
		c.Path != n.file("bin") {
		t.Errorf("call: %+v", c)
	}
	conf := nodetest.Stdin(t, calls[3])
	if !reflect.DeepEqual(conf["runtimeConfig"], map[string]any{"mac": "02:00:00:00:00:01"}) ||
		!reflect.DeepEqual(conf["args"], map[string]any{"cni": map[string]any{"old": 1.0, "new": 2.0}}) {
		t.Errorf("configuration: %s", calls[3].Stdin)
	}
	n.stop(first)
	nodetest.Equal(t, "alive", x.Live(), []string{"a c2 net1"})
	n.stop(second)
	nodetest.Equal(t, "alive", x.Live(), nil)
	if !strings.Contains(p.log.String(), `data0`) {
		t.Error("the log does not say which interfaces a pod has got")
	}
}
