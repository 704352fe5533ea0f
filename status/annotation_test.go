package status_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/status"
)

func TestAnnotationIsACompactList(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		networks []status.Network
		want     string
	}{
		{nil, `[]`},
		{[]status.Network{}, `[]`},
		{
			[]status.Network{
				{Name: "ns/blue", Interface: "eth0", IPs: []string{"10.0.0.2"}, MAC: "02:00:00:00:00:01", MTU: 1400, Default: true, Gateway: []string{"10.0.0.1"}},
				{Name: "red", DNS: types.DNS{Domain: "<a&b>"}},
			},
			`[{"name":"ns/blue","interface":"eth0","ips":["10.0.0.2"],"mac":"02:00:00:00:00:01","mtu":1400,"default":true,"gateway":["10.0.0.1"]},` +
				`{"name":"red","dns":{"domain":"<a&b>"}}]`,
		},
	} {
		text, trimmed := status.Annotation(tt.networks)
		if text != tt.want || trimmed {
			t.Errorf("%s, %v, want %s", text, trimmed, tt.want)
		}
	}
}

// Above 64 KiB the DNS of all is left out first, and only if that is not enough what is
// known of devices. Everything else stays.
func TestAnnotationLeavesOutDNSThenDevices(t *testing.T) {
	t.Parallel()
	const limit = 64 << 10
	// networks are as many as make sense, with this much DNS and of devices in all.
	networks := func(n, dns, device int) []status.Network {
		all := make([]status.Network, n)
		for i := range all {
			all[i] = status.Network{
				Name: fmt.Sprint("ns/", i), Interface: fmt.Sprint("net", i), IPs: []string{"10.0.0.2"},
				DNS:        types.DNS{Domain: strings.Repeat("d", dns/n)},
				DeviceInfo: &status.DeviceInfo{Type: "vhost-user", VhostUser: &status.VhostDevice{Path: strings.Repeat("p", device/n)}},
			}
		}
		return all
	}
	for _, tt := range []struct {
		name             string
		networks         []status.Network
		dns, device, fit bool // what the text has
	}{
		{"small", networks(2, 100, 100), true, true, true},
		{"much DNS", networks(10, limit, 100), false, true, true},
		{"large devices", networks(10, 100, limit), false, false, true},
		{"both", networks(10, limit, limit), false, false, true},
		{"too many of them", networks(2000, 2000, 2000), false, false, false},
	} {
		before, _ := json.Marshal(tt.networks) //nolint:errchkjson // compared below
		text, trimmed := status.Annotation(tt.networks)
		if dns, device := strings.Contains(text, `"dns"`), strings.Contains(text, `"device-info"`); dns != tt.dns || device != tt.device || trimmed == tt.dns {
			t.Errorf("%s: has DNS %v, devices %v, trimmed %v", tt.name, dns, device, trimmed)
		}
		if (len(text) <= limit) != tt.fit {
			t.Errorf("%s: %d bytes", tt.name, len(text))
		}
		var got []status.Network
		if err := json.Unmarshal([]byte(text), &got); err != nil || len(got) != len(tt.networks) {
			t.Fatalf("%s: %d networks, %v", tt.name, len(got), err)
		}
		for i, want := range tt.networks {
			if !tt.dns {
				want.DNS = types.DNS{}
			}
			if !tt.device {
				want.DeviceInfo = nil
			}
			if d := cmp.Diff(want, got[i]); d != "" {
				t.Fatalf("%s (-want +got):\n%s", tt.name, d)
			}
		}
		if after, _ := json.Marshal(tt.networks); string(after) != string(before) { //nolint:errchkjson // compared here
			t.Errorf("%s: the argument was changed", tt.name)
		}
	}
}

// The last byte that is allowed is allowed.
func TestAnnotationOf64KiBIsWhole(t *testing.T) {
	t.Parallel()
	network := status.Network{Name: "a", DNS: types.DNS{Domain: "x"}}
	text, _ := status.Annotation([]status.Network{network})
	network.DNS.Domain = strings.Repeat("x", 64<<10-len(text)+1)
	if text, trimmed := status.Annotation([]status.Network{network}); len(text) != 64<<10 || trimmed {
		t.Errorf("%d bytes, trimmed %v", len(text), trimmed)
	}
	network.DNS.Domain += "x"
	if text, trimmed := status.Annotation([]status.Network{network}); text != `[{"name":"a"}]` || !trimmed {
		t.Errorf("%.80s, trimmed %v", text, trimmed)
	}
}
