package main

import (
	"net"
	"testing"

	"github.com/metacni/metacni/delegate/delegatetest"
)

func TestFakes(t *testing.T) {
	fake := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{
		"bridge": byName(map[string]delegatetest.Fake{"eth0": address(net.IPv4(10, 1, 0, 2)), "net1": address(net.IPv4(10, 2, 0, 2))}),
		"tuning": delegatetest.Result(nil),
	}}
	for _, name := range []string{"eth0", "net1"} {
		env := []string{"CNI_COMMAND=ADD", "CNI_IFNAME=" + name}
		if out, err := fake.ExecPlugin(t.Context(), "/x/bridge", []byte(`{"cniVersion":"1.1.0"}`), env); err != nil {
			t.Errorf("%s: %v", out, err)
		}
	}
	if got := callsOf(fake, "bridge"); len(got) != 2 || len(callsOf(fake, "tuning")) != 0 {
		t.Errorf("calls of bridge: %v", got)
	}
}
