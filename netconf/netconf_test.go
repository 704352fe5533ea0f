package netconf_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/internal/bounds"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
)

// mustPlugin parses a plugin that the test knows to be good.
func mustPlugin(t testing.TB, data string) netconf.Plugin {
	t.Helper()
	p, err := netconf.ParsePlugin([]byte(data))
	if err != nil {
		t.Fatalf("ParsePlugin(%s): %v", data, err)
	}
	return p
}

// said is what a network says of itself, as text.
func said(n netconf.Network) string {
	text := fmt.Sprintf("%q %s of %s", n.Name(), n.CNIVersion(), typesOf(n))
	if caps := n.Capabilities(); caps != nil {
		text += fmt.Sprintf(" with %s", caps)
	}
	if n.DisableCheck() {
		text += ", no CHECK"
	}
	if n.DisableGC() {
		text += ", no GC"
	}
	return text
}

func TestParse(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ data, said, marshals string }{
		"list": {
			data: `{"name":"blue","cniVersion":"1.0.0","plugins":[{"type":"bridge"},{"type":"portmap","capabilities":{"portMappings":true}}]}`,
			said: `"blue" 1.0.0 of bridge portmap with [portMappings]`,
		},
		"lone plugin is a network of one": {
			data:     `{"type":"macvlan","name":"red","cniVersion":"0.4.0","master":"eth0"}`,
			said:     `"red" 0.4.0 of macvlan`,
			marshals: `{"cniVersion":"0.4.0","name":"red","plugins":[{"cniVersion":"0.4.0","master":"eth0","name":"red","type":"macvlan"}]}`,
		},
		"list before lone plugin": {data: `{"type":"meta","plugins":[{"type":"bridge"}]}`, said: `"" 0.1.0 of bridge`},
		"highest known of cniVersions": {
			data: `{"name":"n","cniVersion":"0.4.0","cniVersions":["0.3.1","1.1.0","99.0.0","1.0.0"],"plugins":[{"type":"a"}]}`,
			said: `"n" 1.1.0 of a`,
		},
		"cniVersion above cniVersions": {data: `{"name":"n","cniVersion":"1.0.0","cniVersions":["0.4.0"],"plugins":[{"type":"a"}]}`, said: `"n" 1.0.0 of a`},
		"cniVersions of a lone plugin": {data: `{"name":"n","cniVersion":"0.3.1","cniVersions":["0.4.0",1],"type":"a"}`, said: `"n" 0.3.1 of a`},
		"the first of two spellings":   {data: `{"name":"n","cniVersions":["1.0","1.0.0"],"plugins":[{"type":"a"}]}`, said: `"n" 1.0 of a`},
		"booleans as strings":          {data: `{"name":"n","disableCheck":"TRUE","disableGC":"false","plugins":[{"type":"a"}]}`, said: `"n" 0.1.0 of a, no CHECK`},
		"booleans":                     {data: `{"name":"n","disableCheck":false,"disableGC":true,"plugins":[{"type":"a"}]}`, said: `"n" 0.1.0 of a, no GC`},
		"capabilities of all plugins, odd ones passed over": {
			data: `{"plugins":[{"type":"a","capabilities":{"z":true,"mac":"true","ips":false,"x":1,"y":null}},{"type":"b","capabilities":7},{"type":"c","capabilities":{"aa":true,"z":true}}]}`,
			said: `"" 0.1.0 of a b c with [aa z]`,
		},
		"unknown keys, numbers and strings as written": {
			data:     ` { "x" : [ 1e400 , 9007199254740993, "<&>\u0041" ], "plugins":[{"type":"a","mtu":1.50,"":{ }}] , "<k>":null}`,
			said:     `"" 0.1.0 of a`,
			marshals: `{"<k>":null,"plugins":[{"":{},"mtu":1.50,"type":"a"}],"x":[1e400,9007199254740993,"<&>\u0041"]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := nodetest.Parse(tt.data)
			nodetest.Equal(t, "network", said(n), tt.said)
			data, err := n.MarshalJSON()
			nodetest.OK(t, err)
			if tt.marshals != "" {
				nodetest.Equal(t, "marshals", string(data), tt.marshals)
			}
			if again := nodetest.Parse(string(data)); !again.Equal(n) {
				t.Errorf("parse of marshal differs: %s", cmp.Diff(n, again))
			}
		})
	}
}

func TestZeroNetwork(t *testing.T) {
	t.Parallel()
	var n netconf.Network
	if !n.IsZero() || n.Name() != "" || n.CNIVersion() != "0.1.0" ||
		len(n.Plugins()) != 0 || n.Capabilities() != nil || n.DisableCheck() || n.DisableGC() {
		t.Errorf("zero Network says something: %v", n)
	}
	data, err := json.Marshal(n)
	if string(data) != "null" || err != nil {
		t.Errorf("marshals to %s, %v; want null", data, err)
	}
	if err := json.Unmarshal(data, &n); err != nil || !n.IsZero() {
		t.Errorf("null unmarshals to %v, %v", n, err)
	}
	if !n.Equal(netconf.Single(netconf.Plugin{})) {
		t.Error("Single of the zero Plugin is not zero")
	}
	_, err = n.EditPlugins()
	wantError{kind: netconf.ErrInvalid}.check(t, err)
	_, err = n.Complete("n", "1.0.0")
	wantError{kind: netconf.ErrInvalid}.check(t, err)
	wantError{kind: netconf.ErrInvalid}.check(t, n.Runnable())
	_, err = n.Request(0, netconf.Request{})
	wantError{kind: netconf.ErrInvalid, key: "plugins"}.check(t, err)
}

func TestSingle(t *testing.T) {
	t.Parallel()
	n := netconf.Single(mustPlugin(t, `{"type":"a","name":"n","cniVersion":"1.0.0","mtu":1e3}`))
	if !n.Equal(nodetest.Parse(`{"type":"a","name":"n","cniVersion":"1.0.0","mtu":1e3}`)) {
		t.Errorf("Single and Parse differ: %v", n)
	}

	// What is missing or wrong is found by Request, and can be completed.
	half := netconf.Single(mustPlugin(t, `{"name":"a/b","cniVersion":"1.0.0"}`))
	if half.Name() != "" || half.IsZero() {
		t.Errorf("name is %q, IsZero %v", half.Name(), half.IsZero())
	}
	_, err := half.Request(0, netconf.Request{})
	wantError{kind: netconf.ErrInvalid, network: "a/b", key: "name"}.check(t, err)
	_, err = half.EditPlugins()
	wantError{kind: netconf.ErrInvalid, network: "a/b", key: "name"}.check(t, err)
	named := netconf.Single(mustPlugin(t, `{"name":"ab","cniVersion":"1.0.0"}`))
	_, err = named.Request(0, netconf.Request{})
	wantError{kind: netconf.ErrInvalid, network: "ab", key: "plugins[0].type"}.check(t, err)
	_, err = named.EditPlugins(netconf.Set("mtu", 1))
	wantError{kind: netconf.ErrInvalid, network: "ab", key: "plugins[0].type"}.check(t, err)
	typed, err := named.EditPlugins(netconf.Set("type", "bridge"))
	nodetest.OK(t, err)
	if _, err := typed.Request(0, netconf.Request{}); err != nil {
		t.Error(err)
	}
}

func TestPluginsSharesNoMemory(t *testing.T) {
	t.Parallel()
	n := nodetest.Parse(`{"name":"n","plugins":[{"type": "a"}]}`)
	plugins := n.Plugins()
	plugins[0] = netconf.Plugin{}
	if n.Plugins()[0].Type() != "a" {
		t.Error("Plugins shares memory with the network")
	}
}

func TestEditPlugins(t *testing.T) {
	t.Parallel()
	n := nodetest.Parse(`{"name":"n","x":1,"plugins":[{"type":"a"},{"type":"b","mtu":1}]}`)
	before, _ := n.MarshalJSON()
	edited, err := n.EditPlugins(netconf.Default("mtu", 9000), nil)
	nodetest.OK(t, err)
	want := `{"name":"n","plugins":[{"mtu":9000,"type":"a"},{"mtu":1,"type":"b"}],"x":1}`
	if got, _ := edited.MarshalJSON(); string(got) != want {
		t.Errorf("edited is %s, want %s", got, want)
	}

	mangle := func(keys map[string]json.RawMessage) error {
		for key, raw := range keys {
			clear(raw)
			delete(keys, key)
		}
		return errors.New("no")
	}
	_, err = n.EditPlugins(mangle)
	wantError{kind: netconf.ErrInvalid, network: "n", key: "plugins[0]"}.check(t, err)
	_, err = n.EditPlugins(netconf.Set("type", 1))
	wantError{kind: netconf.ErrDecode, network: "n", key: "plugins[0].type"}.check(t, err)
	if after, _ := n.MarshalJSON(); string(after) != string(before) {
		t.Errorf("the network changed to %s", after)
	}
}

// Complete fills in what is not there, and nothing else.
func TestComplete(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ data, name, version, want string }{
		{`{"plugins":[{"type":"a"}]}`, "n", "1.0.0", `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"}]}`},
		{`{"plugins":[{"type":"a"}]}`, "", "", `{"plugins":[{"type":"a"}]}`},
		{`{"name":"","plugins":[{"type":"a"}]}`, "n", "", `{"name":"n","plugins":[{"type":"a"}]}`},
		{`{"name":"m","cniVersion":"","plugins":[{"type":"a"}]}`, "n", "1.0.0", `{"cniVersion":"1.0.0","name":"m","plugins":[{"type":"a"}]}`},
		{`{"name":null,"cniVersion":null,"plugins":[{"type":"a"}]}`, "n", "1.0.0", `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"}]}`},
		{`{"cniVersions":["0.4.0"],"plugins":[{"type":"a"}]}`, "n", "1.0.0", `{"cniVersions":["0.4.0"],"name":"n","plugins":[{"type":"a"}]}`},
	} {
		n, err := nodetest.Parse(tt.data).Complete(tt.name, tt.version)
		nodetest.OK(t, err)
		got, _ := n.MarshalJSON()
		nodetest.Equal(t, tt.data, string(got), tt.want)
	}
	_, err := nodetest.Parse(`{"name":"n","Type":"a","plugins":[{"type":"a"}]}`).Complete("n", "1.0.0")
	wantError{kind: netconf.ErrInvalid, network: "n", text: `both "type" and "plugins"`}.check(t, err)
	_, err = netconf.Single(mustPlugin(t, `{"type":"a","name":"../x"}`)).Complete("n", "1.0.0")
	wantError{kind: netconf.ErrInvalid, network: "../x", key: "name"}.check(t, err)
}

func TestEqual(t *testing.T) {
	t.Parallel()
	a := nodetest.Parse(`{"plugins":[{"type":"a","x":1}]}`)
	b := nodetest.Parse(`{ "plugins":[{"x":1, "type":"a"}]}`)
	c := nodetest.Parse(`{"plugins":[{"type":"a","x":1.0}]}`)
	if !a.Equal(b) || a.Equal(c) || a.Equal(netconf.Network{}) {
		t.Error("Network.Equal is wrong")
	}
	p, q := a.Plugins()[0], c.Plugins()[0]
	if !p.Equal(b.Plugins()[0]) || p.Equal(q) || mustPlugin(t, `{}`).Equal(netconf.Plugin{}) {
		t.Error("Plugin.Equal is wrong")
	}
	if d := cmp.Diff(a, b); d != "" { // go-cmp finds the methods
		t.Error(d)
	}
}

func TestWithPlugins(t *testing.T) {
	t.Parallel()
	bridge, tuning := mustPlugin(t, `{"type":"bridge","mtu":1.50}`), mustPlugin(t, `{"type":"tuning"}`)
	n, err := netconf.List("blue", "1.1.0", bridge)
	nodetest.OK(t, err)
	longer, err := n.WithPlugins(append(n.Plugins(), tuning)...)
	nodetest.OK(t, err)
	for want, n := range map[string]netconf.Network{
		`{"cniVersion":"1.1.0","name":"blue","plugins":[{"mtu":1.50,"type":"bridge"}]}`:                   n,
		`{"cniVersion":"1.1.0","name":"blue","plugins":[{"mtu":1.50,"type":"bridge"},{"type":"tuning"}]}`: longer,
	} {
		parsed, err := netconf.Parse([]byte(want))
		if err != nil || !n.Equal(parsed) || n.Name() != "blue" || n.CNIVersion() != "1.1.0" {
			t.Errorf("%v, %v, want %s", n, err, want)
		}
	}
	_, err = n.WithPlugins()
	wantError{kind: netconf.ErrInvalid, network: "blue", key: "plugins"}.check(t, err)
	_, err = n.WithPlugins(bridge, mustPlugin(t, `{"mtu":1}`))
	wantError{kind: netconf.ErrInvalid, network: "blue", key: "plugins[1].type"}.check(t, err)
	_, err = netconf.Single(mustPlugin(t, `{"name":"../x","type":"a"}`)).WithPlugins(bridge)
	wantError{kind: netconf.ErrInvalid, network: "../x", key: "name"}.check(t, err)
	_, err = netconf.Network{}.WithPlugins(bridge)
	wantError{kind: netconf.ErrInvalid, text: "zero Network"}.check(t, err)
}

func TestLonePluginBecomesAListWithoutLoss(t *testing.T) {
	t.Parallel()
	const keys = `"args":{"cni":{"ips":["10.0.0.1"]}},"capabilities":{"mac":true},"disableCheck":true,"mtu":1.50,` +
		`"prevResult":{"cniVersion":"1.0.0"},"runtimeConfig":{"mac":"02:00:00:00:00:01"},"type":"a"`
	for own, list := range map[string]string{
		`"cniVersion":"1.0.0","cniVersions":["1.0.0","1.1.0"],"name":"n"`: `"cniVersion":"1.0.0","name":"n"`,
		`"CNIVersion":"1.0.0","Name":"n"`:                                 `"cniVersion":"1.0.0","name":"n"`,
	} {
		n, err := netconf.Parse([]byte("{" + own + "," + keys + "}"))
		nodetest.OK(t, err)
		longer, err := n.WithPlugins(append(n.Plugins(), mustPlugin(t, `{"type":"b"}`))...)
		nodetest.OK(t, err)
		want, err := netconf.Parse([]byte("{" + list + `,"plugins":[{` + own + "," + keys + `},{"type":"b"}]}`))
		nodetest.OK(t, err)
		nodetest.Equal(t, own, longer, want)
		for _, r := range []netconf.Request{{}, {CapabilityArgs: map[string]json.RawMessage{"mac": json.RawMessage(`""`)}}} {
			before, err := n.Request(0, r)
			nodetest.OK(t, err)
			after, err := longer.Request(0, r)
			nodetest.OK(t, err)
			nodetest.Equal(t, own, string(after), string(before))
		}
	}
}

func TestNewPlugin(t *testing.T) {
	t.Parallel()
	type bridge struct {
		Type string          `json:"type"`
		Rate json.RawMessage `json:"rate,omitempty"`
		Next *bridge         `json:"next,omitempty"`
	}
	for _, tt := range []struct {
		name string
		v    any
		want string // the object, or
		err  wantError
	}{
		{"map", map[string]any{"type": "a", "x": "<&>", "ipam": map[string]any{"type": "dhcp"}}, `{"ipam":{"type":"dhcp"},"type":"a","x":"<&>"}`, wantError{}},
		{"struct", bridge{"a", json.RawMessage(" 1.50"), &bridge{Type: "b"}}, `{"next":{"type":"b"},"rate":1.50,"type":"a"}`, wantError{}},
		{"raw", json.RawMessage(` {"type":"a", "x":1e400} `), `{"type":"a","x":1e400}`, wantError{}},
		{"Plugin", mustPlugin(t, `{"type":"a"}`), `{"type":"a"}`, wantError{}},
		{"no type", bridge{}, "", wantError{kind: netconf.ErrInvalid, key: "type", text: "missing"}},
		{"type a number", map[string]int{"type": 7}, "", wantError{kind: netconf.ErrDecode, key: "type"}},
		{"key twice", json.RawMessage(`{"type":"a","x":1,"x":2}`), "", wantError{kind: netconf.ErrDecode, key: "x"}},
		{"deep", json.RawMessage(`{"type":"a","x":` + nested(bounds.Depth) + `}`), "", wantError{kind: netconf.ErrInvalid, text: "1000 levels"}},
		{"no JSON", json.RawMessage(`{`), "", wantError{kind: netconf.ErrInvalid}},
		{"no JSON form", func() {}, "", wantError{kind: netconf.ErrInvalid}},
		{"nil", nil, "", wantError{kind: netconf.ErrDecode}},
		{"zero Plugin", netconf.Plugin{}, "", wantError{kind: netconf.ErrDecode}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, err := netconf.NewPlugin(tt.v)
			if tt.err.kind != nil {
				tt.err.check(t, err)
				nodetest.Equal(t, "with the error", p, netconf.Plugin{})
				return
			}
			nodetest.OK(t, err)
			data, _ := p.MarshalJSON()
			nodetest.Equal(t, "plugin", string(data), tt.want)
		})
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	a := mustPlugin(t, `{"type":"a"}`)
	n, err := netconf.List("", "", a)
	nodetest.OK(t, err)
	data, _ := n.MarshalJSON()
	nodetest.Equal(t, "to be completed", string(data), `{"plugins":[{"type":"a"}]}`)
	for _, tt := range []struct {
		name    string
		plugins []netconf.Plugin
		want    wantError
	}{
		{"../x", []netconf.Plugin{a}, wantError{network: "../x", key: "name"}},
		{"n", nil, wantError{network: "n", key: "plugins"}},
		{"n", []netconf.Plugin{a, {}}, wantError{network: "n", key: "plugins[1].type"}},
	} {
		n, err := netconf.List(tt.name, "1.1.0", tt.plugins...)
		tt.want.kind = netconf.ErrInvalid
		tt.want.check(t, err)
		nodetest.Equal(t, "with the error", n, netconf.Network{})
	}
}

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
		n, err := nodetest.Parse(data).Complete("", "1.1.0")
		nodetest.OK(t, err)
		if n, err = n.EditPlugins(netconf.Set("added", n)); err != nil {
			t.Fatal(err)
		}
		own, err := n.MarshalJSON()
		nodetest.OK(t, err)
		keys, err := netconf.Decode[map[string]json.RawMessage](own)
		nodetest.OK(t, err)
		nodetest.Equal(t, "of the network", string(keys["unknown"]), value)
		request, err := n.Request(0, netconf.Request{
			PrevResult:     json.RawMessage(`{"x":` + value + `}`),
			CapabilityArgs: map[string]json.RawMessage{"mac": json.RawMessage(value)},
		})
		nodetest.OK(t, err)
		keys, err = netconf.Decode[map[string]json.RawMessage](request)
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
}

// Each level of a text has a key twice, and each comparison reads all levels below.
func TestRepeatedKeysInRepeatedKeysEndSoon(t *testing.T) {
	t.Parallel()
	once, twice := `{}`, `{}`
	for range 300 {
		once, twice = `{"a":`+once+`}`, `{"a":`+once+`,"a":`+twice+`}`
	}
	_, err := netconf.Parse([]byte(`{"name":"n","type":"a","x":` + twice + `}`))
	nodetest.Is(t, err, netconf.ErrDecode)
	nodetest.Says(t, err, "given twice")
}

// One rule for the keys of lists, of plugins and of what is in them: the exact key first, then
// another spelling; one value is accepted however often it is there, and two are an error.
func TestAKeyHasOneValueInAllSpellings(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"Name":"n","CNIVERSION":"0.4.0","DisableCheck":true,"Plugins":[{"Type":"a"}]}`: `{"cniVersion":"0.4.0","disableCheck":true,"name":"n","plugins":[{"Type":"a"}]}`,
		`{"name":"n","Name":"n","plugins":[{"type":"a","Type":"a"}]}`:                    `{"name":"n","plugins":[{"Type":"a","type":"a"}]}`,
		`{"name":"n","name":"n","type":"a","type":"\u0061","type":"a"}`:                  `{"name":"n","plugins":[{"name":"n","type":"a"}]}`,
		`{"name":"n","type":"a","x":{"a":1,"b":2},"x":{ "b":2, "a":1 }}`:                 `{"name":"n","plugins":[{"name":"n","type":"a","x":{"b":2,"a":1}}]}`,
		`{"name":"n","type":"a","own":[{"k":1,"k":1}],"Other":1,"other":2}`:              `{"name":"n","plugins":[{"Other":1,"name":"n","other":2,"own":[{"k":1,"k":1}],"type":"a"}]}`,
		`{"cniVersion":null,"name":"n","plugins":[{"type":"a"}]}`:                        `{"name":"n","plugins":[{"type":"a"}]}`,
		`{"cniVersion":null,"name":"n","type":"a"}`:                                      `{"name":"n","plugins":[{"cniVersion":null,"name":"n","type":"a"}]}`,
	} {
		n, err := netconf.Parse([]byte(text))
		nodetest.OK(t, err)
		got, _ := n.MarshalJSON()
		nodetest.Equal(t, text, string(got), want)
	}
	for text, key := range map[string]string{
		`{"name":"n","Name":"m","plugins":[{"type":"a"}]}`:                                      "name",
		`{"name":"n","plugins":[{"type":"a"}],"Plugins":[{"type":"b"}]}`:                        "plugins",
		`{"name":"n","cniVersion":"1.0.0","CNIVersion":null,"plugins":[{"type":"a"}]}`:          "cniVersion",
		`{"name":"n","plugins":[{"type":"a","type":"b"}]}`:                                      "plugins[0].type",
		`{"name":"n","plugins":[{"type":"a","capabilities":{"a":true},"Capabilities":{}}]}`:     "plugins[0].capabilities",
		`{"name":"n","plugins":[{"type":"a","ipam":{"type":"a","Type":"b"}}]}`:                  "plugins[0].ipam.Type",
		`{"name":"n","plugins":[{"type":"a","ipam":{"type":"a"},"ip\u0061m":{"type":"a2"}}]}`:   "plugins[0].ipam",
		`{"name":"n","type":"a","dns":{"nameservers":["10.0.0.1"],"NAMESERVERS":["10.0.0.2"]}}`: "dns.NAMESERVERS",
		`{"name":"n","type":"a","own":[{"k":1,"k":1.0}]}`:                                       "own[0].k",
	} {
		_, err := netconf.Parse([]byte(text))
		wantError{kind: netconf.ErrDecode, key: key, text: "twice"}.check(t, unnamed(err))
	}
}

// unnamed returns err without the network.
func unnamed(err error) error {
	var e *netconf.Error
	if !errors.As(err, &e) {
		return err
	}
	c := *e
	c.Network = ""
	return &c
}

// Who reads a configuration can warn of a key that other programs may refuse.
func TestRepeatedNamesTheFirstKeyThatIsTwiceWithOneValue(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"name":"n","plugins":[{"type":"a"},{"type":"a","x":1,"x":1}]}`: "plugins[1].x",
		`{"":1,"":1}`:         `""`,
		`[{"a":1},{"a":1}]`:   "",
		`{"a":1,"a":2}`:       "",
		`{"a":1,"A":1}`:       "",
		`{"a":1,"a":1`:        "",
		`{"a":[1],"a":[ 1 ]}`: "a",
	} {
		nodetest.Equal(t, text, netconf.Repeated([]byte(text)), want)
	}
}

func TestStep(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"type":"a","step":"mark"}`:      "mark",
		`{"type":"a","Step":"m\u0061rk"}`: "mark",
		`{"type":"a"}`:                    "",
		`{"step":["mark"]}`:               "",
		`{"step":"a","STEP":"a"}`:         "a",
	} {
		nodetest.Equal(t, text, mustPlugin(t, text).Step(), want)
	}
	nodetest.Equal(t, "of the zero Plugin", netconf.Plugin{}.Step(), "")
}

func TestEdits(t *testing.T) {
	t.Parallel()
	const start = `{"type":"a","mtu":1,"ipam":{"type":"host-local"},"n":null,"list":[]}`
	own := func(keys map[string]json.RawMessage) error {
		keys["own"] = nil
		keys["spaced"] = json.RawMessage(" [ 1 ] ")
		return nil
	}
	tests := []struct {
		name  string
		edits []netconf.Edit
		want  string // the object, or
		err   wantError
	}{
		{"none", nil, `{"ipam":{"type":"host-local"},"list":[],"mtu":1,"n":null,"type":"a"}`, wantError{}},
		{"set", []netconf.Edit{netconf.Remove("ipam", "list", "n", "absent"), netconf.Set("mtu", 2), netconf.Set("<", "<&>")}, `{"<":"<&>","mtu":2,"type":"a"}`, wantError{}},
		{"default", []netconf.Edit{netconf.Remove("ipam", "list"), netconf.Default("mtu", 2), netconf.Default("n", 2), netconf.Default("m", 2)}, `{"m":2,"mtu":1,"n":null,"type":"a"}`, wantError{}},
		{"own", []netconf.Edit{netconf.Remove("ipam", "list", "mtu", "n"), own, nil}, `{"own":null,"spaced":[1],"type":"a"}`, wantError{}},
		{"in", []netconf.Edit{
			netconf.Remove("list", "mtu"),
			netconf.In("ipam", netconf.Set("x", 1), netconf.In("y", netconf.Set("z", json.RawMessage("1.0")))),
			netconf.In("n", netconf.Set("made", true)),
			netconf.In("new", netconf.Set("made", true)),
			netconf.In("not", netconf.Remove("x"), netconf.Forbid("x")),
		}, `{"ipam":{"type":"host-local","x":1,"y":{"z":1.0}},"n":{"made":true},"new":{"made":true},"type":"a"}`, wantError{}},
		{"in empties", []netconf.Edit{netconf.Remove("list", "mtu", "n"), netconf.In("ipam", netconf.Remove("type"))}, `{"ipam":{},"type":"a"}`, wantError{}},
		{"forbid", []netconf.Edit{netconf.Forbid("name", "ipam")}, "", wantError{kind: netconf.ErrInvalid, key: "ipam"}},
		{"forbid, spelled otherwise", []netconf.Edit{netconf.Set("IpAm", 1), netconf.Set("IPam", 1), netconf.Remove("list"), netconf.Forbid("name", "ipam")}, "", wantError{kind: netconf.ErrInvalid, key: "IPam"}},
		{"other spellings", []netconf.Edit{
			netconf.Set("IPAM", map[string]any{"Type": "dhcp"}), netconf.Set("MTU", 2), netconf.Default("mtu", 3),
			netconf.In("ipam", netconf.Default("type", "static"), netconf.Set("X", 1), netconf.Remove("x")), netconf.Remove("LIST", "N"),
		}, `{"MTU":2,"ipam":{"Type":"dhcp"},"type":"a"}`, wantError{}},
		{"default of two values", []netconf.Edit{func(keys map[string]json.RawMessage) error { keys["MTU"] = json.RawMessage("7"); return nil }, netconf.Default("Mtu", 3)}, "", wantError{kind: netconf.ErrDecode, key: "Mtu"}},
		{"forbid deep", []netconf.Edit{netconf.In("ipam", netconf.Forbid("type"))}, "", wantError{kind: netconf.ErrInvalid, key: "ipam.type"}},
		{"in a number", []netconf.Edit{netconf.In("mtu", netconf.Set("x", 1))}, "", wantError{kind: netconf.ErrDecode, key: "mtu"}},
		{"in no key", []netconf.Edit{netconf.In("")}, "", wantError{kind: netconf.ErrInvalid}},
		{"set no key", []netconf.Edit{netconf.Set("", 1)}, "", wantError{kind: netconf.ErrInvalid}},
		{"set nothing", []netconf.Edit{netconf.Set("x", nil)}, "", wantError{kind: netconf.ErrInvalid, key: "x"}},
		{"set what is not JSON", []netconf.Edit{netconf.Set("x", math.Inf(1))}, "", wantError{kind: netconf.ErrInvalid, key: "x"}},
		{"own makes no JSON", []netconf.Edit{func(keys map[string]json.RawMessage) error { keys["x"] = json.RawMessage("{"); return nil }}, "", wantError{kind: netconf.ErrDecode, key: "x"}},
		{"own makes no JSON for In", []netconf.Edit{func(keys map[string]json.RawMessage) error { keys["ipam"] = json.RawMessage("{"); return nil }, netconf.In("ipam")}, "", wantError{kind: netconf.ErrDecode, key: "ipam"}},
		{"own gives a key twice", []netconf.Edit{netconf.Set("x", json.RawMessage(`{"a":1,"a":2}`))}, "", wantError{kind: netconf.ErrDecode, key: "x.a"}},
		{"own key not UTF-8", []netconf.Edit{netconf.Set("\xff", 1)}, "", wantError{kind: netconf.ErrDecode, key: "\xff"}},
		{"own error", []netconf.Edit{func(map[string]json.RawMessage) error { return errors.New("no room") }}, "", wantError{kind: netconf.ErrInvalid, text: "no room"}},
		{"own error with a code", []netconf.Edit{netconf.In("ipam", func(map[string]json.RawMessage) error { return codeError(11) })}, "", wantError{kind: netconf.ErrInvalid, code: 11, key: "ipam"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := mustPlugin(t, start)
			got, err := p.Edit(tt.edits...)
			if !p.Equal(mustPlugin(t, start)) {
				t.Errorf("the plugin changed to %v", p)
			}
			if tt.err.kind != nil {
				tt.err.check(t, err)
				return
			}
			nodetest.OK(t, err)
			if data, _ := got.MarshalJSON(); string(data) != tt.want {
				t.Errorf("got %s, want %s", data, tt.want)
			}
		})
	}
}

// An Edit that keeps what it was given cannot change the result.
func TestEditKeepsHold(t *testing.T) {
	t.Parallel()
	var kept map[string]json.RawMessage
	mine := json.RawMessage(`"mine"`)
	p, err := mustPlugin(t, `{"type":"a"}`).Edit(func(keys map[string]json.RawMessage) error {
		keys["x"] = mine
		kept = keys
		return nil
	})
	nodetest.OK(t, err)
	clear(mine)
	clear(kept["type"])
	kept["y"] = nil
	if data, _ := p.MarshalJSON(); string(data) != `{"type":"a","x":"mine"}` {
		t.Errorf("plugin is %s", data)
	}
}
