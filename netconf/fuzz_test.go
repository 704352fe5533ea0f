package netconf_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/utils"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
)

var fuzzSeeds = []string{
	``, `null`, `[]`, `{}`, `{"type":"a"}`, `{"name":"n","type":"a","x":1e400}`, requestNetwork,
	`{"name":"n","cniVersions":["0.4.0","9.0.0"],"disableCheck":"TRUE","plugins":[{"type":"a","capabilities":{"mac":true,"x":1}},{"type":"b","ipam":{"type":"c"}}]}`,
	`{"name":"../n","plugins":[{"type":"a"}]}`, `{"plugins":[{"type":"a","a":{"b":1,"b":2}}]}`,
	"{\"type\":\"\\ud800\",\"\\ud800\":\"\u2028<\"}", `{"TYPE":"a","Type":"b","name":"n"}`,
}

// checkError holds an error of the package against its contract.
func checkError(t *testing.T, err error) {
	t.Helper()
	if _, ok := err.(*netconf.Error); !ok {
		t.Fatalf("error is a %T", err)
	}
	if !errors.Is(err, netconf.ErrDecode) && !errors.Is(err, netconf.ErrInvalid) {
		t.Errorf("error has no kind: %v", err)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error has more than a line: %q", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range fuzzSeeds {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := netconf.Parse(data)
		if err != nil {
			checkError(t, err)
			return
		}
		out, err := n.MarshalJSON()
		if err != nil || !json.Valid(out) {
			t.Fatalf("marshals to %s, %v", out, err)
		}
		again, err := netconf.Parse(out)
		if err != nil || !again.Equal(n) {
			t.Fatalf("%s parses to %v, %v", out, again, err)
		}
		for i, p := range n.Plugins() {
			if p.Type() == "" {
				t.Errorf("plugin %d has no type", i)
			}
			request, err := n.Request(i, netconf.Request{})
			if n.Name() == "" {
				checkError(t, err)
				continue
			}
			nodetest.OK(t, err)
			q, err := netconf.ParsePlugin(request)
			if err != nil || q.Type() != p.Type() {
				t.Errorf("request %s: %v", request, err)
			}
		}
		if n.Name() == "" {
			return
		}
		if utils.ValidateNetworkName(n.Name()) != nil {
			t.Errorf("%q is no network name", n.Name())
		}
	})
}

func FuzzParsePlugin(f *testing.F) {
	for _, seed := range fuzzSeeds {
		f.Add([]byte(seed), "ipam", "type")
	}
	f.Fuzz(func(t *testing.T, data []byte, key, inner string) {
		p, err := netconf.ParsePlugin(data)
		if err != nil {
			checkError(t, err)
			return
		}
		out, err := p.MarshalJSON()
		nodetest.OK(t, err)
		again, err := netconf.ParsePlugin(out)
		if err != nil || !again.Equal(p) {
			t.Fatalf("%s parses to %v, %v", out, again, err)
		}
		p.Capabilities()
		same, err := p.Edit(netconf.In(key, netconf.Remove()), netconf.Default("type", p.Type()), netconf.Remove("type"))
		if err != nil {
			checkError(t, err)
		} else if same.Has("type") {
			t.Errorf("%v has a type", same)
		}
		set, err := p.Edit(netconf.Remove(key), netconf.In(key, netconf.Set(inner, json.RawMessage(out))))
		if err != nil {
			checkError(t, err)
			return
		}
		value, ok := set.Get(key)
		keys, err := netconf.Decode[map[string]json.RawMessage](value)
		if err != nil || !ok {
			t.Fatalf("%q is %s, %v", key, value, err)
		}
		if !bytes.Equal(keys[inner], out) {
			t.Errorf("%q in %q is %s, want %s", inner, key, keys[inner], out)
		}
	})
}

func FuzzParseSelection(f *testing.F) {
	for _, seed := range []string{
		"", "a", "ns/a@net1, b", "a,,b", "../a", "a@b@c", `[{"name":"a"}]`, `{"name":"a"}`,
		`[{"name":"a","namespace":"n","interfaceRequest":"i","mac":"02:00:00:00:00:01","ips":["10.0.0.1/8","::1"],"portMappings":[{"HostPort":80,"containerPort":8e1,"protocol":"tcp"}],"bandwidth":{"x":1.0,"ingressRate":1,"ingressBurst":2},"cni-args":{"<":"<"},"default-route":["::ffff:1.2.3.4"],"deviceID":"d","infiniband-guid":"0011.2233.4455.6677"},{"name":"b","default-route":[],"ipam-claim-reference":"c"}]`,
		`[{"name":"a","portMappings":[{"hostPort":1e400,"hostport":null}],"bandwidth":{"egressBurst":1}}]`,
		`[{"name":"a","default-route":["1.2.3.4"]},{"name":"b","default-route":["::1"]}]`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		selections, err := netconf.ParseSelection(s)
		if err != nil {
			checkError(t, err)
			return
		}
		for _, selection := range selections {
			for _, name := range []string{selection.Name, selection.Namespace, selection.Interface, selection.IPAMClaimReference} {
				if strings.ContainsAny(name, "/\\\x00") && name != selection.Interface || strings.Contains(name, "/") || name == "." || name == ".." {
					t.Errorf("%q can be a path", name)
				}
			}
			for key, arg := range selection.CapabilityArgs() {
				if !json.Valid(arg) {
					t.Errorf("%s is %s", key, arg)
				}
			}
			checkPortsAndRates(t, selection)
			args := selection.LegacyArgs("A=b;IP=x;MAC=y")
			if _, err := net.ParseMAC(selection.MAC); strings.Count(args, ";") != 2 || err == nil != strings.HasSuffix(args, ";MAC="+selection.MAC) {
				t.Errorf("CNI_ARGS are %q", args)
			}
		}
		routed := func(s netconf.Selection) bool { return len(s.DefaultRoute) > 0 }
		if i := slices.IndexFunc(selections, routed); i >= 0 && slices.ContainsFunc(selections[i+1:], routed) {
			t.Error("two selections have gateways")
		}
		if len(selections) == 0 {
			return
		}
		first, err := json.Marshal(selections)
		nodetest.OK(t, err)
		again, err := netconf.ParseSelection(string(first))
		if err != nil {
			t.Fatalf("%s: %v", first, err)
		}
		if second, err := json.Marshal(again); err != nil || !bytes.Equal(first, second) {
			t.Errorf("%s parses to %s, %v", first, second, err)
		}
	})
}

// checkPortsAndRates reads what s asks for as a plugin does that is written in Go. A
// plugin that can read it gets nothing but ports and rates.
func checkPortsAndRates(t *testing.T, s netconf.Selection) {
	t.Helper()
	var ports []struct {
		HostPort, ContainerPort *int
		Protocol                string
	}
	if json.Unmarshal(s.PortMappings, &ports) == nil {
		for _, p := range ports {
			for _, port := range []*int{p.HostPort, p.ContainerPort} {
				if port != nil && (*port < 1 || *port > 65535) {
					t.Errorf("%s: port %d", s.PortMappings, *port)
				}
			}
			if !slices.Contains([]string{"", "tcp", "udp", "sctp"}, strings.ToLower(p.Protocol)) {
				t.Errorf("%s: protocol %q", s.PortMappings, p.Protocol)
			}
		}
	}
	var rates struct{ IngressRate, IngressBurst, EgressRate, EgressBurst float64 }
	if json.Unmarshal(s.Bandwidth, &rates) == nil {
		if rates.IngressRate < 0 || rates.EgressRate < 0 || rates.IngressBurst > 0 && rates.IngressRate == 0 || rates.EgressBurst > 0 && rates.EgressRate == 0 {
			t.Errorf("%s: %+v", s.Bandwidth, rates)
		}
	}
}
