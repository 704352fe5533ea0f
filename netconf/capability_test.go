package netconf_test

import (
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
)

// What a selection asks for reaches a plugin or is an error: nothing is dropped
// in silence.
func TestSelectionIsServedOrRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		asked      string // keys of the selection
		key        string // of these, the one that takes the capability
		capability string
	}{
		{`"ips":["10.0.0.1/8"]`, "ips", "ips"},
		{`"mac":"02:00:00:00:00:01"`, "mac", "mac"},
		{`"portMappings":[{"hostPort":1}]`, "portMappings", "portMappings"},
		{`"portMappings":[]`, "portMappings", "portMappings"},
		{`"bandwidth":{"ingressRate":1}`, "bandwidth", "bandwidth"},
		{`"infiniband-guid":"00:11:22:33:44:55:66:77"`, "infiniband-guid", "infinibandGUID"},
		{`"deviceID":"0000:03:02.0"`, "deviceID", "deviceID"},
		{`"cni-args":{"a":1},"default-route":["10.0.0.1"],"interface":"net1","ips":[],"ipam-claim-reference":"c"`, "", ""},
	} {
		t.Run(tt.asked, func(t *testing.T) {
			t.Parallel()
			selections, err := netconf.ParseSelection(`[{"name":"blue",` + tt.asked + `}]`)
			nodetest.OK(t, err)
			s := selections[0]
			for capabilities, served := range map[string]bool{
				``: false, `{}`: false, `{"` + tt.capability + `":false}`: false, `{"other":true}`: false,
				`{"` + strings.ToUpper(tt.capability) + `":true}`:     false,
				`{"` + tt.capability + `":true}`:                      true,
				`{"` + tt.capability + `":true,"portMappings2":true}`: true,
			} {
				plugin := `{"type":"x"}`
				if capabilities != "" {
					plugin = `{"type":"x","capabilities":` + capabilities + `}`
				}
				n, err := netconf.Parse([]byte(`{"name":"blue","plugins":[{"type":"first"},` + plugin + `,{"type":"last"}]}`))
				nodetest.OK(t, err)
				err = s.ServedBy(n)
				if served || tt.key == "" {
					if err != nil {
						t.Errorf("%s: %v", capabilities, err)
					}
					continue
				}
				wantError{kind: netconf.ErrInvalid, network: "blue", key: tt.key, text: `"capabilities":{"` + tt.capability + `":true}`}.check(t, err)
			}
		})
	}
}

// A selection is served by several plugins together, and not by the zero
// Network; what is not served is named in the same order each time.
func TestServedBySeveralPlugins(t *testing.T) {
	t.Parallel()
	s := netconf.Selection{Name: "blue", MAC: "02:00:00:00:00:01", IPs: []string{"10.0.0.1"}, DeviceID: "d"}
	n, err := netconf.Parse([]byte(`{"name":"other","plugins":[{"type":"x","capabilities":{"mac":true}},{"type":"y","capabilities":{"ips":true,"deviceID":true}}]}`))
	nodetest.OK(t, err)
	if err := s.ServedBy(n); err != nil {
		t.Error(err)
	}
	wantError{kind: netconf.ErrInvalid, network: "blue", key: "deviceID"}.check(t, s.ServedBy(netconf.Network{}))
	s.DeviceID = ""
	wantError{kind: netconf.ErrInvalid, network: "blue", key: "ips"}.check(t, s.ServedBy(netconf.Network{}))
	if err := (netconf.Selection{Name: "blue"}).ServedBy(netconf.Network{}); err != nil {
		t.Error(err)
	}
}

func TestLegacyArgsReplaceTheAddressesOfTheRuntime(t *testing.T) {
	t.Parallel()
	const given = "IgnoreUnknown=1;IP=10.9.9.9;K8S_POD_NAME=p=q;MAC=02:00:00:00:00:09;IP=10.8.8.8"
	for _, tt := range []struct {
		s          netconf.Selection
		args, want string
	}{
		{netconf.Selection{}, "", ""},
		{netconf.Selection{}, given, given},
		{netconf.Selection{IPs: []string{"10.0.0.5/24", "fd00::5"}}, "", "IP=10.0.0.5/24,fd00::5"},
		{netconf.Selection{MAC: "02:00:00:00:00:01"}, "IPX=1;ip=2;;MACS=3", "IPX=1;ip=2;MACS=3;MAC=02:00:00:00:00:01"},
		{
			netconf.Selection{IPs: []string{"10.0.0.5"}},
			given,
			"IgnoreUnknown=1;K8S_POD_NAME=p=q;MAC=02:00:00:00:00:09;IP=10.0.0.5",
		},
		{
			netconf.Selection{IPs: []string{"10.0.0.5"}, MAC: "02:00:00:00:00:01"},
			given,
			"IgnoreUnknown=1;K8S_POD_NAME=p=q;IP=10.0.0.5;MAC=02:00:00:00:00:01",
		},
	} {
		if got := tt.s.LegacyArgs(tt.args); got != tt.want {
			t.Errorf("%v of %q: got %q, want %q", tt.s, tt.args, got, tt.want)
		}
	}
}
