package netconf_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
)

const requestNetwork = `{
	"name": "n", "cniVersions": ["0.4.0", "1.1.0"], "list": "stays here",
	"plugins": [
		{"type": "a", "name": "own", "cniVersion": "0.3.1", "mtu": 1.0},
		{"type": "b", "capabilities": {"mac": true, "ips": true, "bandwidth": false},
		 "prevResult": {"own": 1}, "runtimeConfig": {"own": 1}}
	]
}`

func TestRequest(t *testing.T) {
	t.Parallel()
	args := map[string]json.RawMessage{
		"mac":       json.RawMessage(` "02:00:00:00:00:01" `),
		"ips":       nil,
		"bandwidth": json.RawMessage(`not looked at: not declared`),
	}
	tests := []struct {
		name string
		i    int
		r    netconf.Request
		want string
	}{
		{"zero", 0, netconf.Request{}, `{"cniVersion":"1.1.0","mtu":1.0,"name":"n","type":"a"}`},
		{
			"prevResult", 0,
			netconf.Request{PrevResult: json.RawMessage(`{"z": 1, "ips": [1e0]}`)},
			`{"cniVersion":"1.1.0","mtu":1.0,"name":"n","prevResult":{"ips":[1e0],"z":1},"type":"a"}`,
		},
		{
			"nothing declared", 0,
			netconf.Request{CapabilityArgs: args},
			`{"cniVersion":"1.1.0","mtu":1.0,"name":"n","type":"a"}`,
		},
		{
			"declared", 1,
			netconf.Request{CapabilityArgs: args},
			`{"capabilities":{"mac":true,"ips":true,"bandwidth":false},"cniVersion":"1.1.0","name":"n","prevResult":{"own":1},"runtimeConfig":{"ips":null,"mac":"02:00:00:00:00:01"},"type":"b"}`,
		},
		{
			"own runtimeConfig and prevResult stay", 1,
			netconf.Request{PrevResult: json.RawMessage("null"), CapabilityArgs: map[string]json.RawMessage{"dns": nil}},
			`{"capabilities":{"mac":true,"ips":true,"bandwidth":false},"cniVersion":"1.1.0","name":"n","prevResult":{"own":1},"runtimeConfig":{"own":1},"type":"b"}`,
		},
		{
			"no valid attachments", 0,
			netconf.Request{ValidAttachments: []types.GCAttachment{}},
			`{"cni.dev/attachments":[],"cni.dev/valid-attachments":[],"cniVersion":"1.1.0","mtu":1.0,"name":"n","type":"a"}`,
		},
		{
			"valid attachments", 0,
			netconf.Request{ValidAttachments: []types.GCAttachment{{ContainerID: "c", IfName: "eth0"}}},
			`{"cni.dev/attachments":[{"containerID":"c","ifname":"eth0"}],"cni.dev/valid-attachments":[{"containerID":"c","ifname":"eth0"}],"cniVersion":"1.1.0","mtu":1.0,"name":"n","type":"a"}`,
		},
	}
	n := nodetest.Parse(requestNetwork)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := n.Request(tt.i, tt.r)
			nodetest.OK(t, err)
			nodetest.Equal(t, "request", string(got), tt.want)
			// The same again, and nothing kept of the last time.
			clear(got)
			if again, err := n.Request(tt.i, tt.r); err != nil || string(again) != tt.want {
				t.Errorf("the second time: %s, %v", again, err)
			}
		})
	}
}

func TestRequestErrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, data string
		i          int
		r          netconf.Request
		want       wantError
	}{
		{"before the first", requestNetwork, -1, netconf.Request{}, wantError{kind: netconf.ErrInvalid, network: "n", key: "plugins"}},
		{"after the last", requestNetwork, 2, netconf.Request{}, wantError{kind: netconf.ErrInvalid, network: "n", key: "plugins", text: "2 of 2"}},
		{"empty name", `{"name":"","type":"a"}`, 0, netconf.Request{}, wantError{kind: netconf.ErrInvalid, key: "name"}},
		{"no name", `{"type":"a"}`, 0, netconf.Request{}, wantError{kind: netconf.ErrInvalid, key: "name"}},
		{"prevResult an array", requestNetwork, 0, netconf.Request{PrevResult: json.RawMessage(`[]`)}, wantError{kind: netconf.ErrDecode, network: "n", key: "plugins[0].prevResult"}},
		{"prevResult no JSON", requestNetwork, 1, netconf.Request{PrevResult: json.RawMessage(`{`)}, wantError{kind: netconf.ErrDecode, network: "n", key: "plugins[1].prevResult"}},
		{
			"argument no JSON", requestNetwork, 1,
			netconf.Request{CapabilityArgs: map[string]json.RawMessage{"mac": json.RawMessage("02:00")}},
			wantError{kind: netconf.ErrDecode, network: "n", key: "plugins[1].runtimeConfig.mac"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := nodetest.Parse(tt.data).Request(tt.i, tt.r)
			if got != nil {
				t.Errorf("got %s", got)
			}
			tt.want.check(t, err)
		})
	}
}

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
		{`"bandwidth":{"ingressRate":1}`, "bandwidth", "bandwidth"},
		{`"infiniband-guid":"00:11:22:33:44:55:66:77"`, "infiniband-guid", "infinibandGUID"},
		{`"deviceID":"0000:03:02.0"`, "deviceID", "deviceID"},
		{`"cni-args":{"a":1},"default-route":["10.0.0.1"],"interface":"net1","ips":[],"portMappings":[],"bandwidth":{},"ipam-claim-reference":"c"`, "", "ipam-claim-reference"},
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
	nodetest.OK(t, s.ServedBy(n))
	wantError{kind: netconf.ErrInvalid, network: "blue", key: "deviceID"}.check(t, s.ServedBy(netconf.Network{}))
	s.DeviceID = ""
	wantError{kind: netconf.ErrInvalid, network: "blue", key: "ips"}.check(t, s.ServedBy(netconf.Network{}))
	nodetest.OK(t, (netconf.Selection{Name: "blue"}).ServedBy(netconf.Network{}))
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
		nodetest.Equal(t, fmt.Sprintf("%v of %q: got", tt.s, tt.args), tt.s.LegacyArgs(tt.args), tt.want)
	}
}
