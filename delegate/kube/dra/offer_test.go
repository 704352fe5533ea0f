package dra

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
		got := offer.as(n, nil)
		if diff := cmp.Diff(device{name: "n", exclusive: true, attributes: want}, got, cmp.AllowUnexported(device{})); diff != "" {
			t.Errorf("%s (-want +got)\n%s", config, diff)
		}
		if err := got.check(); err != nil {
			t.Errorf("%s: %v", config, err)
		}
	}
	n, err := netconf.Parse([]byte(`{"name":"n","type":"macvlan","master":"eth1"}`))
	nodetest.OK(t, err)
	offer.Attributes = map[string]string{"master": "bond0", "speed": "fast"}
	want := map[string]string{"plugin": "macvlan", "master": "bond0", "speed": "fast"}
	nodetest.Equal(t, "with attributes of its own", offer.as(n, nil).attributes, want)
	down := errors.New("down")
	if got := offer.as(netconf.Network{}, down); !errors.Is(got.err, down) || len(got.attributes) != 2 {
		t.Errorf("of no network: %+v", got)
	}
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
		{[]Offer{{Network: "a", Attributes: map[string]string{"x": strings.Repeat("1", 65)}}}, "longer than 64"},
		{[]Offer{{Network: "a/b"}, {Network: "a/b", Device: "c"}}, `networks[1]: network "a/b" is listed twice`},
		{[]Offer{{Network: "a/b"}, {Network: "c/b"}}, `networks[1]: two networks are the device "b"`},
	} {
		err := checkOffers(row.offers)
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%+v: %v, want %q", row.offers, err, row.want)
		}
	}
}
