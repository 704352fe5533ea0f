//go:build e2e && linux

package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/metacni/metacni/delegate/conform/host"
	"github.com/metacni/metacni/examples/internal/programtest"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// The runtime has attached eth0 to the cluster network, and then asks multinet for eth0. That is
// refused, because the name is in use, and the DEL after it leaves the interface and the runtime's
// note of it alone, however often it is repeated.
func TestDELAfterARefusedADDLeavesTheRuntimesInterface(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make an interface in the namespace of a container")
	}
	for name, tt := range map[string]struct {
		broken string // keys of the configuration of the ADD and the DEL
		code   uint
	}{
		"the name is in use":     {"", 7},
		"a key of another type":  {`"maxSelections":"x",`, 6},
		"no network of the name": {`"defaultNetworks":["absent"],`, 7},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := programtest.NewHost(t)
			nodetest.OK(t, host.Do(h.NetNS, func() error {
				return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "host0"})
			}))
			const cluster = `{"cniVersion":"1.0.0","name":"cluster","plugins":[{"type":"fake","dir":%q}]}`
			entry := h.Cached("cni", "c1", fmt.Sprintf(cluster, h.Dir), h.NetNS)
			stdin := fmt.Sprintf(`{%s"cniVersion":"1.0.0","name":"multi","type":"multinet","cniDir":%q,"confDir":%q,"cniCacheDir":%q,"delegates":[`+cluster+`]}`,
				tt.broken, h.State, h.Dir, h.Path("cni"), h.Dir)
			if stdout, _, _ := h.Run("ADD", stdin); h.Said(stdout).Code != tt.code {
				t.Errorf("ADD: %s", stdout)
			}
			for range 2 {
				if stdout, _, code := h.Run("DEL", stdin); code != 0 {
					t.Errorf("DEL: %s", stdout)
				}
			}
			nodetest.Equal(t, "calls", h.Calls(), nil)
			_, err := os.Stat(entry)
			nodetest.OK(t, err)
		})
	}
}
