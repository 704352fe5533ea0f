package dra_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/kube/dra"
	"github.com/metacni/metacni/netconf"
)

func TestDevicesHaveAttributesOfTheirNetworks(t *testing.T) {
	t.Parallel()
	for config, want := range map[string]map[string]string{
		`{"name":"n","type":"bridge"}`:                                               {"plugin": "bridge"},
		`{"name":"n","type":"macvlan","master":"eth1"}`:                              {"plugin": "macvlan", "master": "eth1"},
		`{"name":"n","plugins":[{"type":"vlan","master":"eth1"},{"type":"tuning"}]}`: {"plugin": "vlan", "master": "eth1"},
		`{"name":"n","plugins":[{"type":"vlan"},{"type":"tuning","master":"eth1"}]}`: {"plugin": "vlan"},
		`{"name":"n","type":"macvlan","master":["eth1"]}`:                            {"plugin": "macvlan"},
		`{"name":"n","type":"macvlan","master":"` + strings.Repeat("e", 65) + `"}`:   {"plugin": "macvlan"},
		`{"name":"n","type":"` + strings.Repeat("p", 65) + `","master":"e"}`:         {"master": "e"},
	} {
		n, err := netconf.Parse([]byte(config))
		if err != nil {
			t.Fatal(err)
		}
		got := dra.Attributes(n)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", config, diff)
		}
		if err := (dra.Device{Name: "n", Attributes: got}).Check(); err != nil {
			t.Errorf("%s: %v", config, err)
		}
	}
	if got := dra.Attributes(netconf.Network{}); got == nil || len(got) > 0 {
		t.Errorf("of no network: %v", got)
	}
}

func TestDevicesAreNamedForTheirNetworks(t *testing.T) {
	t.Parallel()
	for network, want := range map[string]string{
		"storage": "storage", "My_Net.2": "my-net-2", "_a_": "a", "é": "", "": "",
		strings.Repeat("a", 62) + "_b": strings.Repeat("a", 62),
	} {
		got := dra.DeviceName(network)
		if got != want {
			t.Errorf("%q is named %q, want %q", network, got, want)
		}
		if err := (dra.Device{Name: got}).Check(); got != "" && err != nil {
			t.Error(err)
		}
	}
}
