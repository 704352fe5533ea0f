package plugin_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/netconf"
)

// An error about an interface name says which networks ask for it.
func TestPlanThatFailsNamesTheNetworks(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		asked []string // by the networks a, b and c
		taken []string
		want  string
	}{
		"asked for twice":            {[]string{"", "net5", "net5"}, nil, `network "b" and "c": `},
		"that of the runtime":        {[]string{"", "eth0", ""}, nil, `network "a" and "b": `},
		"that of the runtime, taken": {[]string{"", "", ""}, []string{"eth0"}, `network "a": `},
		"taken":                      {[]string{"", "", "net5"}, []string{"net5"}, `network "c": `},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &plugin.Call{CmdArgs: skel.CmdArgs{IfName: "eth0"}}
			var as []delegate.Attachment
			for i, asked := range tt.asked {
				n, err := netconf.Parse([]byte(`{"cniVersion":"1.1.0","name":"` + string(rune('a'+i)) + `","type":"bridge"}`))
				if err != nil {
					t.Fatal(err)
				}
				as = append(as, delegate.Attachment{Network: n, IfName: asked})
			}
			plan, err := c.Plan(as...)(t.Context(), tt.taken)
			if plan != nil || !errors.Is(err, ifname.ErrTaken) || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("%v, %v; want %s...", plan, err, tt.want)
			}
		})
	}
}
