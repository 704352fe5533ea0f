package main

import (
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
)

func TestCheckOfAnAdoptedContainer(t *testing.T) {
	fake := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"bridge": delegatetest.Result(nil)}}
	p := plugin.Plugin{StateDir: t.TempDir(), Networks: networks}
	c, err := p.Call(plugin.System{Exec: fake}, "CHECK", skel.CmdArgs{
		ContainerID: "c1", IfName: "eth0", Path: "/opt/cni/bin", StdinData: []byte(`{"cniVersion":"1.1.0","name":"n","type":"mine"}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	n, err := netconf.Parse([]byte(`{"cniVersion":"1.1.0","name":"n","type":"bridge"}`))
	if err != nil {
		t.Fatal(err)
	}
	at := delegate.Attached{Attachment: c.Attachment(n), Result: []byte(`{"cniVersion":"1.1.0"}`)}
	for range 2 {
		if err := checkAdopted(t.Context(), c, lifecycle.Adoption{Key: c.Key(), Attached: []delegate.Attached{at}}); err != nil {
			t.Error(err)
		}
	}
	if calls := fake.Trace(); len(calls) != 2 {
		t.Errorf("ran %q", calls)
	}
}
