package netconf_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
)

// What encoding/json loses in a typed structure survives every
// way through the package.
func TestConfigurationIsLossless(t *testing.T) {
	t.Parallel()
	values := []string{
		`9007199254740993`, `1e400`, `-0`, `1.50`, `123456789012345678901234567890`,
		`"<script>&amp;\u2028"`, `"\ud800"`, `"\/"`, `"\u00e9é"`, `null`, `[[],{},[{"b":1,"a":2}]]`, `""`,
	}
	for _, value := range values {
		data := fmt.Sprintf(`{"name":"n","unknown":%[1]s,"plugins":[{"type":"a","unknown":%[1]s}]}`, value)
		n, err := mustParse(t, data).Edit(netconf.Set("cniVersion", "1.1.0"))
		nodetest.OK(t, err)
		if n, err = n.EditPlugins(netconf.Set("added", n)); err != nil {
			t.Fatal(err)
		}
		if got, _ := n.Get("unknown"); string(got) != value {
			t.Errorf("network has %s, want %s", got, value)
		}
		request, err := n.Request(0, netconf.Request{
			PrevResult:     json.RawMessage(`{"x":` + value + `}`),
			CapabilityArgs: map[string]json.RawMessage{"mac": json.RawMessage(value)},
		})
		nodetest.OK(t, err)
		keys, err := netconf.Decode[map[string]json.RawMessage](request)
		nodetest.OK(t, err)
		if string(keys["unknown"]) != value || string(keys["prevResult"]) != `{"x":`+value+`}` {
			t.Errorf("request is %s, want %s in it", request, value)
		}
	}
}

func TestPlugin(t *testing.T) {
	t.Parallel()
	p := mustPlugin(t, `{ "ipam": { "type" : "host-local" }, "mtu": 1500 }`)
	if p.Type() != "" || p.IsZero() || !p.Has("ipam") || p.Has("type") {
		t.Errorf("plugin is %v", p)
	}
	raw, ok := p.Get("ipam")
	if !ok || string(raw) != `{"type":"host-local"}` {
		t.Errorf("ipam is %s", raw)
	}
	var v struct {
		MTU  int
		IPAM netconf.Plugin
	}
	if err := p.Decode(&v); err != nil || v.MTU != 1500 || v.IPAM.Type() != "host-local" {
		t.Errorf("Decode gave %+v, %v", v, err)
	}
	var odd struct {
		MTU bool `json:"mtu"`
	}
	wantError{kind: netconf.ErrDecode, key: "mtu"}.check(t, p.Decode(&odd))
	wantError{kind: netconf.ErrDecode}.check(t, p.Decode(nil))

	q, err := p.Edit(netconf.Set("type", "bridge"))
	if err != nil || q.Type() != "bridge" || p.Type() != "" {
		t.Errorf("Edit gave %v, %v", q, err)
	}
	_, err = p.Edit(netconf.Set("dns", "8.8.8.8"))
	wantError{kind: netconf.ErrDecode, key: "dns"}.check(t, err)

	var zero netconf.Plugin
	if !zero.IsZero() || zero.Type() != "" || zero.Has("type") || zero.Capabilities() != nil {
		t.Errorf("zero plugin says something")
	}
	if err := json.Unmarshal([]byte(` null `), &zero); err != nil || !zero.IsZero() {
		t.Errorf("null unmarshals to %v, %v", zero, err)
	}
	data, err := json.Marshal(struct {
		P netconf.Plugin
		Q netconf.Plugin `json:",omitzero"`
	}{})
	if string(data) != `{"P":null}` || err != nil {
		t.Errorf("zero plugins marshal to %s, %v", data, err)
	}
	if made, err := zero.Edit(netconf.Set("type", "x")); err != nil || made.Type() != "x" {
		t.Errorf("edit of the zero plugin gave %v, %v", made, err)
	}
	if err := zero.UnmarshalJSON([]byte(`[]`)); err == nil || !zero.IsZero() {
		t.Errorf("[] unmarshals to %v", zero)
	}
	_, err = netconf.ParsePlugin([]byte(`{"type":"a"}x`))
	wantError{kind: netconf.ErrDecode}.check(t, err)
}

// As for libcni, the keys of a plugin match in upper and lower case. They reach the plugin as
// they were written, except those that a request replaces.
func TestKeysOfPluginsMatchInAnyCase(t *testing.T) {
	t.Parallel()
	n, err := netconf.Parse([]byte(`{"Name":"blue","CNIVersion":"1.0.0","Type":"bridge","Capabilities":{"mac":true},"MTU":1.0}`))
	nodetest.OK(t, err)
	if p := n.Plugins()[0]; n.Name() != "blue" || n.CNIVersion() != "1.0.0" || p.Type() != "bridge" || len(p.Capabilities()) != 1 {
		t.Errorf("%q %q %q %q", n.Name(), n.CNIVersion(), p.Type(), p.Capabilities())
	}
	stdin, err := n.Request(0, netconf.Request{})
	if want := `{"Capabilities":{"mac":true},"MTU":1.0,"Type":"bridge","cniVersion":"1.0.0","name":"blue"}`; string(stdin) != want || err != nil {
		t.Errorf("request %s, %v, want %s", stdin, err, want)
	}
	_, err = netconf.Parse([]byte(`{"name":"blue","type":"bridge","Type":"macvlan"}`))
	wantError{kind: netconf.ErrDecode, network: "blue", key: "type", text: "given twice"}.check(t, err)
	_, err = netconf.Parse([]byte(`{"name":"blue","plugins":[{"type":"bridge","IPAM":5}]}`))
	wantError{kind: netconf.ErrDecode, network: "blue", key: "plugins[0].ipam"}.check(t, err)
	_, err = netconf.Parse([]byte(`{"name":"blue","Plugins":[{"type":"bridge"}]}`))
	wantError{kind: netconf.ErrInvalid, network: "blue", key: "plugins"}.check(t, err)
}
