package delegate

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/netconf"
)

// idle is an Exec that costs nothing.
type idle struct{ version.PluginDecoder }

func (*idle) FindInPath(plugin string, _ []string) (string, error) { return plugin, nil }

func (*idle) ExecPlugin(context.Context, string, []byte, []string) ([]byte, error) {
	return []byte(`{"cniVersion":"1.0.0","interfaces":[{"name":"eth0"}],"ips":[{"address":"10.1.0.2/24"}]}`), nil
}

func benchmarked(b *testing.B) (*Invoker, Attachment) {
	b.Helper()
	n, err := netconf.Parse([]byte(`{"cniVersion":"1.0.0","name":"blue","plugins":[
		{"type":"bridge","bridge":"cni0","isGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}},
		{"type":"portmap","capabilities":{"portMappings":true},"snat":true}]}`))
	if err != nil {
		b.Fatal(err)
	}
	iv := &Invoker{Exec: new(idle), Path: []string{"/opt/cni/bin"}}
	for i := range 30 { // as much as a kubelet's
		iv.Env = append(iv.Env, fmt.Sprintf("VARIABLE_%d=some value of usual length", i))
	}
	return iv, Attachment{
		Network: n, ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0", Args: "IgnoreUnknown=1;K8S_POD_NAME=p",
		CapabilityArgs: map[string]json.RawMessage{"portMappings": json.RawMessage(`[{"hostPort":80,"containerPort":8080}]`)},
	}
}

// All that an ADD of a chain of two costs beside its processes.
func BenchmarkAdd(b *testing.B) {
	iv, a := benchmarked(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := iv.Add(b.Context(), a); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRequest(b *testing.B) {
	_, a := benchmarked(b)
	prev, err := new(idle).ExecPlugin(b.Context(), "", nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.Network.Request(1, netconf.Request{PrevResult: prev, CapabilityArgs: a.CapabilityArgs}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEnviron(b *testing.B) {
	iv, a := benchmarked(b)
	in := iv.invocation("ADD", a, 0)
	b.ReportAllocs()
	for b.Loop() {
		if len(iv.environ(in)) != 36 {
			b.Fatal("not the environment")
		}
	}
}

func BenchmarkReadResult(b *testing.B) {
	out, err := new(idle).ExecPlugin(b.Context(), "", nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := readResult(out, "1.0.0", nil); err != nil {
			b.Fatal(err)
		}
	}
}
