package dra

import (
	"fmt"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
)

func TestDevicesHaveAttributesOfTheirNetworks(t *testing.T) {
	t.Parallel()
	offer := Offer{Network: "blue/n", Exclusive: true}
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
		nodetest.OK(t, err)
		nodetest.Equal(t, config, attributes(offer.device(n)), want)
	}
	n, err := netconf.Parse([]byte(`{"name":"n","type":"macvlan","master":"eth1"}`))
	nodetest.OK(t, err)
	offer.Attributes = map[string]string{"master": "bond0", "speed": "fast"}
	want := map[string]string{"plugin": "macvlan", "master": "bond0", "speed": "fast"}
	nodetest.Equal(t, "with attributes of its own", attributes(offer.device(n)), want)
	nodetest.Equal(t, "of no network", attributes(offer.device(netconf.Network{})), offer.Attributes)
}

// attributes returns those of a device, which are all strings.
func attributes(d resourcev1.Device) map[string]string {
	all := map[string]string{}
	for name, a := range d.Attributes {
		all[string(name)] = *a.StringValue
	}
	return all
}

func TestDevicesAreNamedForTheirNetworks(t *testing.T) {
	t.Parallel()
	for network, want := range map[string]string{
		"storage": "storage", "blue/storage.v2": "storage-v2", "My_Net.2": "my-net-2", "_a_": "a", "é": "",
		strings.Repeat("a", 62) + "_b": strings.Repeat("a", 62),
	} {
		got := Offer{Network: network}.name()
		if got != want {
			t.Errorf("%q is named %q, want %q", network, got, want)
		}
	}
	if got := (Offer{Network: "blue/storage", Device: "other"}).name(); got != "other" {
		t.Errorf("got %q", got)
	}
}

func TestOffersThatNoAPIServerTakesAreRefused(t *testing.T) {
	t.Parallel()
	many := func(n int) map[string]string {
		all := map[string]string{}
		for i := range n {
			all[fmt.Sprintf("a%d", i)] = ""
		}
		return all
	}
	for _, row := range []struct {
		offers []Offer
		want   string // of the error; empty means none
	}{
		{nil, ""},
		{[]Offer{{Network: "blue/storage", Attributes: map[string]string{"speed": "fast", "example.com/rack": "7"}}, {Network: "My_Net"}, {Network: "_My_Net", Device: "x"}}, ""},
		{[]Offer{{Network: "a", Attributes: many(30)}}, ""},
		{[]Offer{{Network: "a", Attributes: many(31)}}, "attributes"},
		{[]Offer{{Network: "a"}, {}}, "networks[1]: network: missing"},
		{[]Offer{{Network: "a/b/c"}}, `"a/b/c" is not namespace/name`},
		{[]Offer{{Network: "A/b"}}, `"A/b" is not namespace/name`},
		{[]Offer{{Network: "a/"}}, `"a/" is not namespace/name`},
		{[]Offer{{Network: "a", Device: "A"}}, `device "A"`},
		{[]Offer{{Network: "___"}}, `device ""`},
		{[]Offer{{Network: "a", Attributes: map[string]string{"x y": "1"}}}, `"x y"`},
		{[]Offer{{Network: "a", Attributes: map[string]string{strings.Repeat("x", 33): "1"}}}, "no name of an attribute"},
		{[]Offer{{Network: "a", Attributes: map[string]string{"A_B/a": "1"}}}, `"A_B/a"`},
		{[]Offer{{Network: "a", Attributes: map[string]string{"x": strings.Repeat("1", 65)}}}, "longer than 64"},
		{[]Offer{{Network: "a/b"}, {Network: "a/b", Device: "c"}}, `networks[1]: network "a/b" is listed twice`},
		{[]Offer{{Network: "a/b"}, {Network: "c/b"}}, `networks[1]: two networks are the device "b"`},
	} {
		err := Check(driverName, row.offers)
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%+v: %v, want %q", row.offers, err, row.want)
		}
	}
}
