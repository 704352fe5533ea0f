package netconf_test

import (
	"encoding/json"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/nodetest"
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
	n := mustParse(t, requestNetwork)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := n.Request(tt.i, tt.r)
			nodetest.OK(t, err)
			if string(got) != tt.want {
				t.Errorf("got\n%s, want\n%s", got, tt.want)
			}
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
			got, err := mustParse(t, tt.data).Request(tt.i, tt.r)
			if got != nil {
				t.Errorf("got %s", got)
			}
			tt.want.check(t, err)
		})
	}
}

func BenchmarkRequest(b *testing.B) {
	n := mustParse(b, requestNetwork)
	r := netconf.Request{
		PrevResult:     json.RawMessage(`{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.2/24","interface":0}]}`),
		CapabilityArgs: map[string]json.RawMessage{"mac": json.RawMessage(`"02:00:00:00:00:01"`)},
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := n.Request(1, r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := netconf.Parse([]byte(requestNetwork)); err != nil {
			b.Fatal(err)
		}
	}
}
