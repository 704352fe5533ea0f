package netconf_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
)

// metaConfig is the configuration of some meta-plugin.
type metaConfig struct {
	Name      string                     `json:"name"`
	Delegates []netconf.Network          `json:"delegates"`
	Primary   netconf.Network            `json:"primary"`
	Delegate  netconf.Plugin             `json:"delegate"`
	MTU       int                        `json:"mtu"`
	Gateway   netip.Addr                 `json:"gateway"`
	ByName    map[string]netconf.Network `json:"byName"`
	Odd       oddValue                   `json:"odd"`
}

// oddValue wraps what netconf says.
type oddValue struct{ p netconf.Plugin }

func (o *oddValue) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, &o.p); err != nil {
		return fmt.Errorf("odd: %w", err)
	}
	return nil
}

func TestDecode(t *testing.T) {
	t.Parallel()
	conf, err := netconf.Decode[metaConfig]([]byte(` {"name":"m","mtu":9000,"delegate":{"mtu":1},
		"delegates":[{"type":"a"},{"name":"l","plugins":[{"type":"b"},{"type":"c"}]},null],"unknown":1e400} `))
	nodetest.OK(t, err)
	if conf.Name != "m" || conf.MTU != 9000 || !conf.Delegate.Has("mtu") || len(conf.Delegates) != 3 ||
		conf.Delegates[0].Plugins()[0].Type() != "a" || len(conf.Delegates[1].Plugins()) != 2 ||
		!conf.Delegates[2].IsZero() || !conf.Primary.IsZero() {
		t.Errorf("decoded to %+v", conf)
	}
	n, err := netconf.Decode[netconf.Network]([]byte(`{"name":"m","type":"a"}`))
	if err != nil || n.Name() != "m" {
		t.Errorf("a Network decoded to %v, %v", n, err)
	}
}

func TestDecodeErrors(t *testing.T) {
	t.Parallel()
	decode, invalid := netconf.ErrDecode, netconf.ErrInvalid
	tests := []struct {
		name, data string
		want       wantError
	}{
		{"empty", "", wantError{kind: decode}},
		{"null", "null", wantError{kind: decode}},
		{"array", `[{"name":"m"}]`, wantError{kind: decode}},
		{"trailing data", `{"name":"m"}}`, wantError{kind: decode}},
		{"key twice", `{"name":"m","mtu":1,"mtu":2}`, wantError{kind: decode, key: "mtu"}},
		{"wrong type", `{"name":"m","mtu":"big"}`, wantError{kind: decode, network: "m", key: "mtu", text: "a string, want a whole number"}},
		{"too large a number", `{"name":"m","mtu":98765432109876543210}`, wantError{kind: decode, network: "m", key: "mtu", text: "a number, want a whole number"}},
		{"name of the wrong type", `{"name":["m"]}`, wantError{kind: decode, key: "name", text: "an array, want a string"}},
		{"address", `{"name":"m","mtu":1,"gateway":"10.0.0"}`, wantError{kind: decode, network: "m", key: "gateway"}},
		{"delegate a string", `{"name":"m","delegate":"bridge"}`, wantError{kind: decode, network: "m", key: "delegate"}},
		{"delegates an object", `{"name":"m","delegates":{"type":"a"}}`, wantError{kind: decode, network: "m", key: "delegates"}},
		{"delegate without type", `{"name":"m","delegates":[{"type":"a"},{"name":"d"}]}`, wantError{kind: invalid, network: "d", key: "delegates[1].plugins"}},
		{"plugins empty", `{"name":"m","primary":{"plugins":[]}}`, wantError{kind: invalid, network: "m", key: "primary.plugins"}},
		{"plugin type", `{"name":"m","delegates":[{"name":"d","plugins":[{"type":"a"},{"type":1}]}]}`, wantError{kind: decode, network: "d", key: "delegates[0].plugins[1].type"}},
		{"in a map", `{"name":"m","byName":{"x":{"plugins":[]}}}`, wantError{kind: invalid, network: "m", key: "byName.x.plugins"}},
		{"wrapped", `{"name":"m","odd":{"type":1}}`, wantError{kind: decode, network: "m", key: "odd", text: "odd: cannot decode"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			conf, err := netconf.Decode[metaConfig]([]byte(tt.data))
			tt.want.check(t, err)
			if conf.Name != "" {
				t.Errorf("returned with the error: %+v", conf)
			}
		})
	}
	// Texts are about JSON, not about types of Go.
	for _, tt := range []struct{ data, want string }{
		{`{"flag":1}`, `key "flag": a number, want a boolean`},
		{`{"names":"a"}`, `key "names": a string, want an array`},
		{`{"names":[true]}`, `key "names[0]": a boolean, want a string`},
		{`{"keys":[]}`, `key "keys": an array, want an object`},
		{`{"in":{"flag":{}}}`, `key "in.flag": an object, want a boolean`},
		{`{"gateway":7}`, `key "gateway": a number, want a string`},
		{`{"rate":"x"}`, `key "rate": a string, want a number`},
	} {
		_, err := netconf.Decode[struct {
			Flag    *bool               `json:"flag"`
			Names   []string            `json:"names"`
			Keys    map[string]string   `json:"keys"`
			In      struct{ Flag bool } `json:"in"`
			Gateway netip.Addr          `json:"gateway"`
			Rate    float64             `json:"rate"`
		}]([]byte(tt.data))
		if want := "cannot decode configuration: " + tt.want; err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", tt.data, err, want)
		}
		if mismatch := (*json.UnmarshalTypeError)(nil); !errors.As(err, &mismatch) {
			t.Errorf("%s: %v does not wrap the error of encoding/json", tt.data, err)
		}
	}
	// Keys are those of the JSON, and have the whole path.
	type inner struct {
		Type string `json:"type"`
		MTU  *int
	}
	for data, key := range map[string]string{
		`{"tenants":{"silver":{"type":7}}}`:                  "tenants.silver.type",
		`{"tenants":{"gold":{"type":"a"},"s.1":{"mtu":{}}}}`: "tenants.s.1.mtu",
		`{"deep":{"list":[{},{"type":"a"},{"type":7}]}}`:     "deep.list[2].type",
		`{"mtu":"x"}`: "mtu",
		`{"Mtu":"x"}`: "Mtu",
		`{"nets":{"a":[{"type":"b"},{"type":7}]}}`: "nets.a[1].type",
		`{"grid":[[1],[2,"x"]]}`:                   "grid[1][1]",
		`{"mtu":1,"kinds":{"a":1}}`:                "kinds.a",
	} {
		type conf struct {
			Tenants map[string]inner `json:"tenants"`
			Deep    struct {
				List []inner `json:"list"`
			} `json:"deep"`
			Nets map[string][]netconf.Plugin `json:"nets"`
			Grid *[][]int                    `json:"grid"`
			inner
			MTU   int
			Kinds map[string]string
		}
		_, err := netconf.Decode[conf]([]byte(data))
		p, parseErr := netconf.ParsePlugin([]byte(data))
		if parseErr != nil {
			t.Fatal(parseErr)
		}
		for _, err := range []error{err, p.Decode(new(conf))} {
			if e := (*netconf.Error)(nil); !errors.As(err, &e) || e.Key != key || e.Kind != decode {
				t.Errorf("%s: %v, want the key %s", data, err, key)
			}
		}
	}
	_, err := netconf.Decode[netconf.Network]([]byte(`{"cniVersion":"1.0.0","name":"m"}`))
	wantError{kind: invalid, network: "m", key: "plugins"}.check(t, err)
	_, err = netconf.Decode[string]([]byte(`{"name":"m"}`))
	wantError{kind: decode, network: "m"}.check(t, err)
	_, err = netconf.Decode[chan int]([]byte(`{"name":"m"}`))
	wantError{kind: decode, network: "m"}.check(t, err)
}
