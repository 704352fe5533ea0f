package netconf_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
)

func TestParseSelection(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, s string
		want    []netconf.Selection
	}{
		{"empty", "", nil},
		{"blank", " \n\t", nil},
		{"one name", "blue", []netconf.Selection{{Name: "blue"}}},
		{
			"list", " blue , kube-system/red@net7,\n\tGreen_1.x@ eth1 ",
			[]netconf.Selection{{Name: "blue"}, {Name: "red", Namespace: "kube-system", Interface: "net7"}, {Name: "Green_1.x", Interface: "eth1"}},
		},
		{"nothing before / and after @", "/blue,red@,/green@ ", []netconf.Selection{{Name: "blue"}, {Name: "red"}, {Name: "green"}}},
		{"null", " null\n", nil},
		{"keys in upper and lower case", `[{"Name":"a","NameSpace":"b","Interface":"c","Ips":["10.0.0.5/024"],"Cni-Args":{"Foo":1,"foo":2},"Default-Route":["10.0.0.1"],"PORTMAPPINGS":[{"hostPort":1}]}]`, []netconf.Selection{{
			Name: "a", Namespace: "b", Interface: "c", IPs: []string{"10.0.0.5/024"}, CNIArgs: map[string]json.RawMessage{"Foo": json.RawMessage("1"), "foo": json.RawMessage("2")},
			DefaultRoute: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, PortMappings: json.RawMessage(`[{"hostPort":1}]`),
		}}},
		{"a key with one value in two spellings", `[{"name":"a","name":"a","Name":"a"}]`, []netconf.Selection{{Name: "a"}}},
		{
			"array, every field",
			`[{"name":"blue","namespace":"ns","interface":"net1","mac":"02:00:00:00:00:01","infiniband-guid":"00:11:22:33:44:55:66:77",
			   "deviceID":"0000:03:00.0","ips":["10.0.0.5/24","fd00::5"],"portMappings":[{"hostPort":80, "containerPort":8080}],
			   "bandwidth":{"ingressRate": 1000000},"cni-args":{"k":[1, 9007199254740993]},"default-route":["10.0.0.1","fd00::1"],
			   "unknown":true},
			  {"name":"red","ipam-claim-reference":"claim.a"}]`,
			[]netconf.Selection{{
				Name: "blue", Namespace: "ns", Interface: "net1", MAC: "02:00:00:00:00:01", InfinibandGUID: "00:11:22:33:44:55:66:77",
				DeviceID: "0000:03:00.0", IPs: []string{"10.0.0.5/24", "fd00::5"},
				PortMappings: json.RawMessage(`[{"hostPort":80,"containerPort":8080}]`),
				Bandwidth:    json.RawMessage(`{"ingressRate":1000000}`),
				CNIArgs:      map[string]json.RawMessage{"k": json.RawMessage(`[1,9007199254740993]`)},
				DefaultRoute: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")},
			}, {Name: "red", IPAMClaimReference: "claim.a"}},
		},
		{"old name of the interface", `[{"name":"a","interfaceRequest":"net5"},{"name":"b","interface":"net6","interfaceRequest":"net7"}]`, []netconf.Selection{{Name: "a", Interface: "net5"}, {Name: "b", Interface: "net6"}}},
		{
			"null is absent",
			`[{"name":"a","namespace":null,"interface":null,"interfaceRequest":null,"mac":null,"infiniband-guid":null,"deviceID":null,"ips":null,"portMappings":null,"bandwidth":null,"cni-args":null,"default-route":null,"ipam-claim-reference":null}]`,
			[]netconf.Selection{{Name: "a"}},
		},
		{
			"ports and rates with keys in any spelling",
			`[{"name":"a","portMappings":[{"HostPort":1,"CONTAINERPORT":65535,"Protocol":"sctp"},{"hostPort":80,"protocol":"UDP","HostIP":"192.0.2.1","x":7},{"protocol":null}],"bandwidth":{"IngressRate":1,"ingressBurst":9223372036854775807,"egressBurst":null}}]`,
			[]netconf.Selection{{
				Name:         "a",
				PortMappings: json.RawMessage(`[{"HostPort":1,"CONTAINERPORT":65535,"Protocol":"sctp"},{"hostPort":80,"protocol":"UDP","HostIP":"192.0.2.1","x":7},{"protocol":null}]`),
				Bandwidth:    json.RawMessage(`{"IngressRate":1,"ingressBurst":9223372036854775807,"egressBurst":null}`),
			}},
		},
		{
			"no limit is 0", // NPWG's own Go type always writes all four
			`[{"name":"a","bandwidth":{"ingressRate":1000000,"ingressBurst":800000,"egressRate":0,"egressBurst":0}},
			  {"name":"b","bandwidth":{"ingressRate":0,"ingressBurst":0,"egressRate":0,"EgressBurst":0}},
			  {"name":"c","bandwidth":{"ingressRate":0,"x":0}},{"name":"d","bandwidth":{"ingressRate": 1,"egressRate":null}}]`,
			[]netconf.Selection{
				{Name: "a", Bandwidth: json.RawMessage(`{"ingressBurst":800000,"ingressRate":1000000}`)},
				{Name: "b"},
				{Name: "c", Bandwidth: json.RawMessage(`{"x":0}`)},
				{Name: "d", Bandwidth: json.RawMessage(`{"ingressRate":1,"egressRate":null}`)},
			},
		},
		{"an address of IP over InfiniBand", `[{"name":"a","mac":"80` + strings.Repeat(":01", 19) + `"}]`, []netconf.Selection{{Name: "a", MAC: "80" + strings.Repeat(":01", 19)}}},
		{"empty default route and arguments", `[{"name":"a","default-route":[],"cni-args":{},"ips":[]}]`, []netconf.Selection{{Name: "a", DefaultRoute: []netip.Addr{}, CNIArgs: map[string]json.RawMessage{}, IPs: []string{}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := netconf.ParseSelection(tt.s)
			nodetest.OK(t, err)
			if d := cmp.Diff(tt.want, got, cmpopts.EquateComparable(netip.Addr{})); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestParseSelectionErrors(t *testing.T) {
	t.Parallel()
	decode, invalid := netconf.ErrDecode, netconf.ErrInvalid
	tests := []struct {
		s    string
		want wantError
	}{
		{"a,,b", wantError{kind: invalid, key: "[1].name", text: "missing"}},
		{"a,ns/b/c", wantError{kind: invalid, network: "b/c", key: "[1].name"}},
		{"../a", wantError{kind: invalid, network: "a", key: "[0].namespace"}},
		{"Ns/a", wantError{kind: invalid, network: "a", key: "[0].namespace"}},
		{"a b", wantError{kind: invalid, network: "a b", key: "[0].name"}},
		{"@x", wantError{kind: invalid, key: "[0].name", text: "missing"}},
		{"a@b@c", wantError{kind: invalid, network: "a", key: "[0].interface"}},
		{"a@..", wantError{kind: invalid, network: "a", key: "[0].interface"}},
		{"a,b@sixteen-bytes-xx", wantError{kind: invalid, network: "b", key: "[1].interface"}},
		{"a\xff", wantError{kind: decode, text: "UTF-8"}},
		{`{"name":"a"}`, wantError{kind: decode, text: "an object, want an array"}},
		{`[{"name":"a"}`, wantError{kind: decode, text: "line 1"}},
		{`[{“name”:"a"}]`, wantError{kind: decode, text: "line 1, column 3: invalid character '“' looking for beginning of object key string: the quotes of JSON are \""}},
		{`[{"name":é}]`, wantError{kind: decode, text: "invalid character 'é' looking for beginning of value"}},
		{`[{"name":"a"},"b"]`, wantError{kind: decode, key: "[1]"}},
		{`[{}]`, wantError{kind: invalid, key: "[0].name", text: "missing"}},
		{`[{"name":5}]`, wantError{kind: decode, key: "[0].name"}},
		{`[{"name":"a","namespace":"."}]`, wantError{kind: invalid, network: "a", key: "[0].namespace"}},
		{`[{"name":"a","interfaceRequest":"a/b"}]`, wantError{kind: invalid, network: "a", key: "[0].interface"}},
		{`[{"name":"a","infiniband-guid":"02:00:00:00:00:01"}]`, wantError{kind: invalid, network: "a", key: "[0].infiniband-guid"}},
		{`[{"name":"a","ips":[1]}]`, wantError{kind: decode, network: "a", key: "[0].ips"}},
		{`[{"name":"a","ips":["10.0.0.1","10.0.0.300"]}]`, wantError{kind: invalid, network: "a", key: "[0].ips[1]"}},
		{`[{"name":"a","ips":["fe80::1%eth0"]}]`, wantError{kind: invalid, network: "a", key: "[0].ips[0]"}},
		{`[{"name":"a","portMappings":{}}]`, wantError{kind: decode, network: "a", key: "[0].portMappings"}},
		{`[{"name":"a","portMappings":[80]}]`, wantError{kind: decode, network: "a", key: "[0].portMappings"}},
		{`[{"name":"a","portMappings":[{},{"hostPort":0}]}]`, wantError{kind: invalid, network: "a", key: "[0].portMappings[1].hostPort", text: "from 1 to 65535"}},
		{`[{"name":"a","portMappings":[{"containerPort":65536}]}]`, wantError{kind: invalid, network: "a", key: "[0].portMappings[0].containerPort"}},
		{`[{"name":"a","portMappings":[{"hostPort":1e400}]}]`, wantError{kind: invalid, network: "a", key: "[0].portMappings[0].hostPort"}},
		{`[{"name":"a","portMappings":[{"hostPort":80.0}]}]`, wantError{kind: invalid, network: "a", key: "[0].portMappings[0].hostPort", text: "in digits alone"}},
		{`[{"name":"a","portMappings":[{"hostPort":80,"HostIP":7}]}]`, wantError{kind: decode, network: "a", key: "[0].portMappings[0].hostIP", text: "a number, want a string"}},
		{`[{"name":"a","portMappings":[{"hostPort":"80"}]}]`, wantError{kind: decode, network: "a", key: "[0].portMappings[0].hostPort", text: "a string, want a number"}},
		{`[{"name":"a","portMappings":[{"hostPort":80,"HostPort":70000}]}]`, wantError{kind: decode, network: "a", key: "[0].portMappings[0].hostPort", text: "two values"}},
		{`[{"name":"a","Ips":["10.0.0.1"],"IPs":["10.0.0.2"]}]`, wantError{kind: decode, network: "a", key: "[0].ips", text: "two values"}},
		{`[{"Name":"a","MAC":"xx"}]`, wantError{kind: invalid, network: "a", key: "[0].mac"}},
		{`[{"name":"a","ips":["10.0.0.1/33"]}]`, wantError{kind: invalid, network: "a", key: "[0].ips[0]"}},
		{`[{"name":"a","portMappings":[{"Protocol":"icmp"}]}]`, wantError{kind: invalid, network: "a", key: "[0].portMappings[0].protocol", text: `"icmp"`}},
		{`[{"name":"a","portMappings":[{"protocol":6}]}]`, wantError{kind: decode, network: "a", key: "[0].portMappings[0].protocol"}},
		{`[{"name":"a","bandwidth":{"egressRate":1e+06}}]`, wantError{kind: invalid, network: "a", key: "[0].bandwidth.egressRate", text: "in digits alone"}},
		{`[{"name":"a","bandwidth":{"egressRate":9223372036854775808}}]`, wantError{kind: invalid, network: "a", key: "[0].bandwidth.egressRate", text: "9223372036854775807"}},
		{`[{"name":"a","bandwidth":{"ingressRate":0,"ingressBurst":1}}]`, wantError{kind: invalid, network: "a", key: "[0].bandwidth.ingressBurst", text: `without "ingressRate"`}},
		{`[{"name":"a","mac":"ff:ff:ff:ff:ff:ff"}]`, wantError{kind: invalid, network: "a", key: "[0].mac", text: "multicast"}},
		{`[{"name":"a","mac":"0000.0000.0000"}]`, wantError{kind: invalid, network: "a", key: "[0].mac", text: "leave the key out"}},
		{`[{"name":"a","mac":"02:00:00:00:00:00:00:01"}]`, wantError{kind: invalid, network: "a", key: "[0].mac", text: `"infiniband-guid"`}},
		{`[{"name":"a","mac":"` + strings.Repeat("00:", 19) + `00"}]`, wantError{kind: invalid, network: "a", key: "[0].mac", text: "zero"}},
		{`[{"name":"a","infiniband-guid":"00:00:00:00:00:00:00:00"}]`, wantError{kind: invalid, network: "a", key: "[0].infiniband-guid", text: "0"}},
		{`[{"name":"a","ips":["fd00::1","FD00:0::1/64"]}]`, wantError{kind: invalid, network: "a", key: "[0].ips[1]", text: "twice"}},
		{`[{"name":"a","ips":["0.0.0.0/24"]}]`, wantError{kind: invalid, network: "a", key: "[0].ips[0]", text: "no interface"}},
		{`[{"name":"a","ips":["ff02::1/64"]}]`, wantError{kind: invalid, network: "a", key: "[0].ips[0]", text: "no interface"}},
		{`[{"name":"a","default-route":["ff02::1"]}]`, wantError{kind: invalid, network: "a", key: "[0].default-route[0]", text: "no gateway"}},
		{`[{"name":"a","bandwidth":{"egressRate":1,"egressBurst":0}}]`, wantError{kind: invalid, network: "a", key: "[0].bandwidth.egressBurst"}},
		{`[{"name":"a","bandwidth":{"egressRate":"1M"}}]`, wantError{kind: decode, network: "a", key: "[0].bandwidth.egressRate"}},
		{`[{"name":"a","bandwidth":{"ingressRate":1,"egressRate":null,"egressBurst":2}}]`, wantError{kind: invalid, network: "a", key: "[0].bandwidth.egressBurst", text: `"egressRate"`}},
		{`[{"name":"a","cni-args":"x=y"}]`, wantError{kind: decode, network: "a", key: "[0].cni-args"}},
		{`[{"name":"a","default-route":"10.0.0.1"}]`, wantError{kind: decode, network: "a", key: "[0].default-route"}},
		{`[{"name":"a","default-route":["10.0.0.1","gw"]}]`, wantError{kind: invalid, network: "a", key: "[0].default-route[1]"}},
		{`[{"name":"a","default-route":["10.0.0.1","fd00::1","::ffff:10.0.0.1"]}]`, wantError{kind: invalid, network: "a", key: "[0].default-route[2]", text: "second gateway of IPv4"}},
		{`[{"name":"a","default-route":["fd00::1","10.0.0.1","fd00::1"]}]`, wantError{kind: invalid, network: "a", key: "[0].default-route[2]", text: "second gateway of IPv6"}},
		{`[{"name":"a","default-route":["10.0.0.1"]},{"name":"b","default-route":[]},{"name":"c","default-route":["fd00::1"]}]`, wantError{kind: invalid, network: "c", key: "[2].default-route", text: "[0]"}},
		{`[{"name":"a","ips":["10.0.0.1"],"ipam-claim-reference":"claim"}]`, wantError{kind: invalid, network: "a", key: "[0].ipam-claim-reference", text: `"ips"`}},
		{`[{"name":"a","ipam-claim-reference":"UPPER"}]`, wantError{kind: invalid, network: "a", key: "[0].ipam-claim-reference"}},
		{`[{"name":"a","ipam-claim-reference":"` + strings.Repeat("a", 254) + `"}]`, wantError{kind: invalid, network: "a", key: "[0].ipam-claim-reference"}},
	}
	for _, tt := range tests {
		t.Run(tt.s, func(t *testing.T) {
			t.Parallel()
			got, err := netconf.ParseSelection(tt.s)
			if got != nil {
				t.Errorf("got %v", got)
			}
			tt.want.check(t, err)
		})
	}
}

func TestSelectionJSON(t *testing.T) {
	t.Parallel()
	const data = `{"name":"a","cni-args":{},"default-route":[]}`
	var s netconf.Selection
	nodetest.OK(t, json.Unmarshal([]byte(data), &s))
	if got, err := json.Marshal(s); err != nil || string(got) != data {
		t.Errorf("marshals to %s, %v; want %s", got, err, data)
	}
	before := s
	if err := json.Unmarshal([]byte("null"), &s); err != nil || s.Name != before.Name {
		t.Errorf("null makes it %v, %v", s, err)
	}
	wantError{kind: netconf.ErrInvalid, network: "b", key: "mac"}.check(t, s.UnmarshalJSON([]byte(`{"name":"b","mac":"x"}`)))
	wantError{kind: netconf.ErrDecode, key: "name"}.check(t, s.UnmarshalJSON([]byte(`{"name":"b","name":"c"}`)))
	nodetest.Equal(t, "left by a failed Unmarshal", s.Name, "a")
}

func TestCapabilityArgs(t *testing.T) {
	t.Parallel()
	if args := (netconf.Selection{Name: "a", Interface: "net1"}).CapabilityArgs(); args != nil {
		t.Errorf("args are %v", args)
	}
	s, err := netconf.ParseSelection(`[{"name":"a","mac":"02:00:00:00:00:01","ips":["10.0.0.1/8"],"portMappings":[{"hostPort":1}],
		"bandwidth":{"x":1.0},"infiniband-guid":"00:11:22:33:44:55:66:77","deviceID":"<d>","cni-args":{"x":1},"default-route":["10.0.0.1"]}]`)
	nodetest.OK(t, err)
	args := s[0].CapabilityArgs()
	want := map[string]json.RawMessage{
		"mac":            json.RawMessage(`"02:00:00:00:00:01"`),
		"ips":            json.RawMessage(`["10.0.0.1/8"]`),
		"portMappings":   json.RawMessage(`[{"hostPort":1}]`),
		"bandwidth":      json.RawMessage(`{"x":1.0}`),
		"infinibandGUID": json.RawMessage(`"00:11:22:33:44:55:66:77"`),
		"deviceID":       json.RawMessage(`"<d>"`),
	}
	nodetest.Equal(t, "got", args, want)
	clear(args["bandwidth"])
	if string(s[0].Bandwidth) != `{"x":1.0}` {
		t.Error("the arguments share memory with the selection")
	}
}

func TestSelectionEdits(t *testing.T) {
	t.Parallel()
	n, err := netconf.Parse([]byte(`{"cniVersion":"1.1.0","name":"a","plugins":[{"type":"x"},{"type":"y","args":{"cni":{"k":0,"old":1.0},"z":2}}]}`))
	nodetest.OK(t, err)
	for _, tt := range []struct{ selection, want string }{
		{`[{"name":"a"}]`, `{"type":"x"} {"args":{"cni":{"k":0,"old":1.0},"z":2},"type":"y"}`},
		{`[{"name":"a","cni-args":{}}]`, `{"type":"x"} {"args":{"cni":{"k":0,"old":1.0},"z":2},"type":"y"}`},
		{
			`[{"name":"a","cni-args":{"k":9007199254740993,"b":"<"}}]`,
			`{"args":{"cni":{"b":"<","k":9007199254740993}},"type":"x"} {"args":{"cni":{"b":"<","k":9007199254740993,"old":1.0},"z":2},"type":"y"}`,
		},
		{
			`[{"name":"a","cni-args":{"ipam-claim-reference":"other","k":1},"ipam-claim-reference":"claim.a"}]`,
			`{"args":{"cni":{"ipam-claim-reference":"claim.a","k":1}},"type":"x"} {"args":{"cni":{"ipam-claim-reference":"claim.a","k":1,"old":1.0},"z":2},"type":"y"}`,
		},
	} {
		s, err := netconf.ParseSelection(tt.selection)
		nodetest.OK(t, err)
		edited, err := n.EditPlugins(s[0].Edits()...)
		nodetest.OK(t, err)
		var got []string
		for _, p := range edited.Plugins() {
			text, err := p.MarshalJSON()
			nodetest.OK(t, err)
			got = append(got, string(text))
		}
		nodetest.Equal(t, tt.selection, strings.Join(got, " "), tt.want)
	}
	// As in Multus, any keys are passed on.
	s := netconf.Selection{Name: "a", CNIArgs: map[string]json.RawMessage{"": json.RawMessage("1"), "Old": json.RawMessage("2"), "old": json.RawMessage("3")}}
	edited, err := n.EditPlugins(s.Edits()...)
	nodetest.OK(t, err)
	args, _ := edited.Plugins()[0].Get("args")
	nodetest.Equal(t, "args", string(args), `{"cni":{"":1,"Old":2,"old":3}}`)
}

// An annotation may have 256 KiB. Its errors are read by people.
func TestSelectionErrorsAreShort(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("Y", 200_000)
	for _, tt := range []struct{ annotation, key string }{
		{long, "[0].name"},
		{"a," + long + "/b", "[1].namespace"},
		{"a@" + long, "[0].interface"},
		{`[{"name":"a","interfaceRequest":"` + long + `"}]`, "[0].interfaceRequest"},
		{`[{"name":"a","mac":"` + long + `"}]`, "[0].mac"},
		{`[{"name":"a","infiniband-guid":"` + long + `"}]`, "[0].infiniband-guid"},
		{`[{"name":"a","deviceID":"` + long + `"}]`, "[0].deviceID"},
		{`[{"name":"a","ips":["10.0.0.1","` + long + `"]}]`, "[0].ips[1]"},
		{`[{"name":"a","default-route":["` + long + `"]}]`, "[0].default-route[0]"},
		{`[{"name":"a","ipam-claim-reference":"` + long + `"}]`, "[0].ipam-claim-reference"},
		{`[{"name":"a","portMappings":[{"protocol":"` + long + `"}]}]`, "[0].portMappings[0].protocol"},
	} {
		_, err := netconf.ParseSelection(tt.annotation)
		var e *netconf.Error
		if !errors.As(err, &e) || e.Key != tt.key || len(err.Error()) > 200 {
			t.Errorf("%.40s…: %.300v, want a short error about %s", tt.annotation, err, tt.key)
		}
	}
}

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
