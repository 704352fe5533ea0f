package netconf_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/bounds"
	nodetest "github.com/metacni/metacni/internal/test/node"
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
		{"wrong type", `{"name":"m","mtu":"big"}`, wantError{kind: decode, network: "m", key: "mtu", text: "a string, want a whole number"}},
		{"too large a number", `{"name":"m","mtu":98765432109876543210}`, wantError{kind: decode, network: "m", key: "mtu", text: "a number, want a whole number"}},
		{"name of the wrong type", `{"name":["m"]}`, wantError{kind: decode, key: "name", text: "an array, want a string"}},
		{"address", `{"name":"m","mtu":1,"gateway":"10.0.0"}`, wantError{kind: decode, network: "m", key: "gateway"}},
		{"delegate a string", `{"name":"m","delegate":"bridge"}`, wantError{kind: decode, network: "m", key: "delegate"}},
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
			nodetest.Equal(t, "returned with the error", conf.Name, "")
		})
	}
	// Texts are about JSON, not about types of Go.
	for _, tt := range []struct{ data, want string }{
		{`{"flag":1}`, `key "flag": a number, want a boolean`},
		{`{"names":[true]}`, `key "names[0]": a boolean, want a string`},
		{`{"keys":[]}`, `key "keys": an array, want an object`},
		{`{"in":{"flag":{}}}`, `key "in.flag": an object, want a boolean`},
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
		`{"nets":{"a":[{"type":"b"},{"type":7}]}}`:                    "nets.a[1].type",
		`{"mtu":1,"kinds":{"a":1}}`:                                   "kinds.a",
		`{"zones":{"b":{"n":{"type":7}}}}`:                            "zones.b.n.type",
		`{"zones":{"b":{"n":{"plugins":[{"type":"a"},{"type":7}]}}}}`: "zones.b.n.plugins[1].type",
		`{"kinds":{"b":1,"a":1}}`:                                     "kinds.b", // the first
	} {
		type conf struct {
			Tenants map[string]inner `json:"tenants"`
			Deep    struct {
				List []inner `json:"list"`
			} `json:"deep"`
			Nets map[string][]netconf.Plugin `json:"nets"`
			inner
			MTU   int
			Kinds map[string]string
			Zones map[string]map[string]netconf.Network
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

// The search for the path of a wrong key decodes 1 MiB, and eight times the data, at most.
func TestPathInDeepDataIsBounded(t *testing.T) {
	t.Parallel()
	type tree struct {
		Next *tree           `json:"next"`
		Kids map[string]tree `json:"kids"`
		List []int           `json:"list"`
	}
	const levels = 100
	for _, tt := range []struct{ open, path, end string }{
		{`{"next":`, "next.", "}"},
		{`{"kids":{"a":`, "kids.a.", "}}"},
	} {
		for numbers, shown := range map[int]int{3: levels, 150_000: 12} {
			data := strings.Repeat(tt.open, levels) + `{"list":[` + strings.Repeat("1,", numbers) + `"x"]}` + strings.Repeat(tt.end, levels)
			_, err := netconf.Decode[tree]([]byte(data))
			whole := strings.Repeat(tt.path, levels) + fmt.Sprintf("list[%d]", numbers)
			var e *netconf.Error
			if !errors.As(err, &e) || !strings.HasPrefix(whole, e.Key) {
				t.Fatalf("%d numbers: %.200v", numbers, err)
			}
			if n := strings.Count(e.Key+".", tt.path); n > shown || n < 5 || shown == levels && e.Key != whole {
				t.Errorf("%d numbers: %d levels in the path", numbers, n)
			}
		}
	}
}

func TestParseErrors(t *testing.T) {
	t.Parallel()
	decode, invalid := netconf.ErrDecode, netconf.ErrInvalid
	tests := []struct {
		name, data string
		want       wantError
	}{
		{"empty", ``, wantError{kind: decode, text: "line 1"}},
		{"not JSON", "{\n  \"name\": blue}", wantError{kind: decode, text: "line 2, column 11"}},
		{"a line break in a string", "{\n  \"name\": \"blue\n\"}", wantError{kind: decode, text: "line 2, column 16"}},
		{"trailing data", `{"type":"a"} {}`, wantError{kind: decode, text: "after top-level value"}},
		{"not UTF-8", "{\"name\":\"\xff\"}", wantError{kind: decode, text: "UTF-8"}},
		{"null", `null`, wantError{kind: decode, text: "null, want an object"}},
		{"array", `[]`, wantError{kind: decode, text: "an array, want an object"}},
		{"no plugins, no type", `{"name":"n"}`, wantError{kind: invalid, network: "n", key: "plugins"}},
		{"plugins empty", `{"name":"n","plugins":[]}`, wantError{kind: invalid, network: "n", key: "plugins"}},
		{"plugins object", `{"name":"n","plugins":{}}`, wantError{kind: decode, network: "n", key: "plugins"}},
		{"plugin not an object", `{"name":"n","plugins":[{"type":"a"},3]}`, wantError{kind: decode, network: "n", key: "plugins[1]"}},
		{"plugin without type", `{"name":"n","plugins":[{"type":"a"},{}]}`, wantError{kind: invalid, network: "n", key: "plugins[1].type"}},
		{"plugin with empty type", `{"name":"n","plugins":[{"type":""}]}`, wantError{kind: invalid, network: "n", key: "plugins[0].type"}},
		{"type of a lone plugin empty", `{"name":"n","type":""}`, wantError{kind: invalid, network: "n", key: "type", text: "missing"}},
		{"type a number", `{"name":"n","plugins":[{"type":4}]}`, wantError{kind: decode, network: "n", key: "plugins[0].type"}},
		{"name a number", `{"name":4,"plugins":[{"type":"a"}]}`, wantError{kind: decode, key: "name"}},
		{"name a path", `{"name":"../x","plugins":[{"type":"a"}]}`, wantError{kind: invalid, network: "../x", key: "name"}},
		{"cniVersion a number", `{"name":"n","cniVersion":1,"plugins":[{"type":"a"}]}`, wantError{kind: decode, network: "n", key: "cniVersion"}},
		{"cniVersions a string", `{"name":"n","cniVersions":"1.0.0","plugins":[{"type":"a"}]}`, wantError{kind: decode, network: "n", key: "cniVersions"}},
		{"cniVersions element", `{"name":"n","cniVersions":["1.0.0",1],"plugins":[{"type":"a"}]}`, wantError{kind: decode, network: "n", key: "cniVersions[1]"}},
		{"cniVersions no version", `{"name":"n","cniVersions":["one"],"plugins":[{"type":"a"}]}`, wantError{kind: invalid, network: "n", key: "cniVersions[0]", text: `"one"`}},
		{"cniVersion no version", `{"name":"n","cniVersion":"one","cniVersions":[],"plugins":[{"type":"a"}]}`, wantError{kind: invalid, network: "n", key: "cniVersion"}},
		{"disableGC a word", `{"name":"n","disableGC":"yes","plugins":[{"type":"a"}]}`, wantError{kind: invalid, network: "n", key: "disableGC", text: "neither true nor false"}},
		{"loadOnlyInlinedPlugins null", `{"name":"n","loadOnlyInlinedPlugins":null,"plugins":[{"type":"a"}]}`, wantError{kind: decode, network: "n", key: "loadOnlyInlinedPlugins"}},
		{"loadOnlyInlinedPlugins and no plugins", `{"name":"n","loadOnlyInlinedPlugins":true}`, wantError{kind: invalid, network: "n", key: "plugins", text: "loadOnlyInlinedPlugins"}},
		{"empty key twice", `{"":1,"":2}`, wantError{kind: decode, key: `""`}},
		{"ipam a string", `{"name":"n","plugins":[{"type":"a","ipam":"dhcp"}]}`, wantError{kind: decode, network: "n", key: "plugins[0].ipam"}},
		{"ipam type a number", `{"name":"n","plugins":[{"type":"a","ipam":{"type":1}}]}`, wantError{kind: decode, network: "n", key: "plugins[0].ipam.type"}},
		{"dns servers a string", `{"name":"n","type":"a","dns":{"nameservers":"8.8.8.8"}}`, wantError{kind: decode, network: "n", key: "dns.nameservers"}},
		{"prevResult an array", `{"name":"n","type":"a","prevResult":[]}`, wantError{kind: decode, network: "n", key: "prevResult"}},
		{"valid attachments an object", `{"name":"n","type":"a","cni.dev/valid-attachments":{}}`, wantError{kind: decode, network: "n", key: "cni.dev/valid-attachments"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n, err := netconf.Parse([]byte(tt.data))
			if err == nil {
				t.Fatalf("no error, but %v", n)
			}
			if !n.IsZero() {
				t.Error("a network was returned with the error")
			}
			tt.want.check(t, err)
			// A configuration that embeds it fails the same way.
			if strings.Contains(tt.want.text, "line") || tt.data == "null" {
				return
			}
			var into netconf.Network
			err = into.UnmarshalJSON([]byte(tt.data))
			tt.want.check(t, err)
		})
	}
}

// Secrets of a configuration do not get into errors.
func TestErrorsQuoteNoValues(t *testing.T) {
	t.Parallel()
	for _, data := range []string{
		`{"name":"n","plugins":[{"type":"a","token":"hunter2","token":"hunter3"}]}`,
		`{"name":"n","plugins":[{"type":"a","token":"hunter2"},{"password":"hunter2"}]}`,
		`{"name":"n","plugins":[{"type":"a","ipam":"hunter2"}]}`,
		`{"name":"n","plugins":[{"type":"a","dns":{"domain":{"hunter2":"hunter2"}}}]}`,
		`{"name":"n","password":"hunter2","plugins":[]}`,
		`{"name":"n","disableCheck":"hunter2","plugins":[{"type":"a"}]}`,
		`{"name":"n","password":"hunter2" "plugins":[]}`,
	} {
		_, err := netconf.Parse([]byte(data))
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Parse(%s): %v", data, err)
		}
	}
}

// codeError is an error with a CNI code of its own.
type codeError uint

func (e codeError) Error() string { return fmt.Sprintf("code %d", uint(e)) }
func (e codeError) CNICode() uint { return uint(e) }

func TestError(t *testing.T) {
	t.Parallel()
	cause := errors.New("why")
	tests := []struct {
		err  netconf.Error
		text string
		code uint
	}{
		{netconf.Error{}, "cannot read configuration", 5},
		{netconf.Error{File: "f", Err: fs.ErrPermission}, `cannot read configuration: file "f": permission denied`, 5},
		{netconf.Error{Kind: netconf.ErrNotFound, Network: "n"}, `no such network: network "n"`, 7},
		{netconf.Error{Kind: netconf.ErrDecode, File: "f", Network: "n", Key: "k", Err: cause}, `cannot decode configuration: file "f", network "n", key "k": why`, 6},
		{netconf.Error{Kind: netconf.ErrInvalid, Key: "k"}, `invalid configuration: key "k"`, 7},
	}
	for _, tt := range tests {
		nodetest.Equal(t, "text", tt.err.Error(), tt.text)
		nodetest.Equal(t, fmt.Sprintf("%v: code", &tt.err), tt.err.CNICode(), tt.code)
		for _, want := range []error{tt.err.Kind, tt.err.Err} {
			if want != nil && !errors.Is(&tt.err, want) {
				t.Errorf("%v is not %v", &tt.err, want)
			}
		}
	}
}

// An edit's own error keeps its kind and its code.
func TestEditErrorsKeepKindAndCode(t *testing.T) {
	t.Parallel()
	p := mustPlugin(t, `{"type":"a"}`)
	fail := func(err error) error {
		_, err = p.Edit(func(map[string]json.RawMessage) error { return err })
		return err
	}
	wantError{kind: netconf.ErrInvalid, code: 11}.check(t, fail(types.NewError(11, "later", "")))
	wantError{kind: netconf.ErrInvalid, code: 103, text: "outside: code 103"}.check(t, fail(fmt.Errorf("outside: %w", codeError(103))))
	_, inner := netconf.ParsePlugin([]byte(`[]`))
	wantError{kind: netconf.ErrDecode, text: "outside: cannot decode"}.check(t, fail(fmt.Errorf("outside: %w", inner)))
	wantError{kind: netconf.ErrDecode}.check(t, fail(inner))
	wantError{kind: netconf.ErrNotFound}.check(t, fail(fmt.Errorf("looking: %w", netconf.ErrNotFound)))
	wantError{kind: netconf.ErrInvalid}.check(t, fail(codeError(0)))
}

// wantError is what the tests ask of an error.
type wantError struct {
	kind    error
	code    uint
	file    string
	network string
	key     string
	text    string // part of the text
}

func (w wantError) check(t *testing.T, err error) {
	t.Helper()
	var e *netconf.Error
	if !errors.As(err, &e) {
		t.Fatalf("error is %T (%v), want *netconf.Error", err, err)
	}
	if _, ok := err.(*netconf.Error); !ok {
		t.Errorf("outermost error is %T, want *netconf.Error", err)
	}
	if e.Kind != w.kind || (w.kind != nil && !errors.Is(err, w.kind)) {
		t.Errorf("kind is %v, want %v (%v)", e.Kind, w.kind, err)
	}
	if w.code == 0 {
		w.code = 7
		if w.kind == netconf.ErrDecode {
			w.code = 6
		}
	}
	nodetest.Equal(t, "CNI code", e.CNICode(), w.code)
	got := []string{e.File, e.Network, e.Key}
	nodetest.Equal(t, "file, network, key", got, []string{w.file, w.network, w.key})
	if !strings.HasPrefix(err.Error(), "") || !strings.Contains(err.Error(), w.text) {
		t.Errorf("text is %q, want %q in it", err, w.text)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("text has more than one line: %q", err)
	}
	for _, field := range got {
		if !strings.Contains(err.Error(), strings.Trim(fmt.Sprintf("%q", field), `"`)) {
			t.Errorf("text %q does not name %q", err, field)
		}
	}
}

// nested returns JSON of so many levels.
func nested(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }

// withoutPlace returns err, an *Error or nil, without the file and the network.
func withoutPlace(err error) error {
	var e *netconf.Error
	if !errors.As(err, &e) {
		return err
	}
	e.File, e.Network = "", ""
	return e
}

func TestDeeplyNestedInputIsRefused(t *testing.T) {
	t.Parallel()
	const list, lone = `{"name":"n","plugins":[{"type":"a","x":%s}]}`, `{"name":"n","type":"a","x":%s}`
	for name, read := range map[string]struct {
		levels int // of text around the value
		text   string
		read   func(text string) error
	}{
		"Parse of a list": {3, list, func(text string) error { _, err := netconf.Parse([]byte(text)); return err }},
		"Parse":           {1, lone, func(text string) error { _, err := netconf.Parse([]byte(text)); return err }},
		"LoadFile": {1, lone, func(text string) error {
			_, err := netconf.LoadFile(fstest.MapFS{"n.conf": {Data: []byte(text)}}, "n.conf")
			return withoutPlace(err)
		}},
		"Decode": {1, `{"delegates":%s}`, func(text string) error {
			_, err := netconf.Decode[map[string]json.RawMessage]([]byte(text))
			return err
		}},
		"ParseSelection": {3, `[{"name":"n","cni-args":{"x":%s}}]`, func(text string) error { _, err := netconf.ParseSelection(text); return err }},
		"Selection":      {2, `{"name":"n","cni-args":{"x":%s}}`, func(text string) error { return new(netconf.Selection).UnmarshalJSON([]byte(text)) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := read.read(fmt.Sprintf(read.text, nested(bounds.Depth-read.levels))); err != nil {
				t.Errorf("%d levels: %v", bounds.Depth, err)
			}
			for _, levels := range []int{bounds.Depth + 1, 9_999, 100_000} {
				err := read.read(fmt.Sprintf(read.text, nested(levels-read.levels)))
				wantError{kind: netconf.ErrInvalid, code: 7, text: "1000 levels"}.check(t, err)
			}
		})
	}
}

// What Parse accepts can be completed, recorded and read back.
func TestNetworkOfTheGreatestDepthCanBeReadBack(t *testing.T) {
	t.Parallel()
	s, err := netconf.ParseSelection(`[{"name":"n","cni-args":{"x":` + nested(bounds.Depth-3) + `}}]`)
	nodetest.OK(t, err)
	for _, text := range []string{`{"type":"a","x":` + nested(bounds.Depth-1) + `}`, `{"plugins":[{"type":"a"}],"x":` + nested(bounds.Depth-1) + `}`} {
		n, err := netconf.Parse([]byte(text))
		if err == nil {
			n, err = n.EditPlugins(s[0].Edits()...)
		}
		if err == nil {
			n, err = n.Complete("n", "")
		}
		nodetest.OK(t, err)
		recorded, _ := n.MarshalJSON()
		var back netconf.Network
		if err := json.Unmarshal(recorded, &back); err != nil || !back.Equal(n) {
			t.Errorf("read back with %v", err)
		}
	}
}

func TestLargeNetworkIsRefused(t *testing.T) {
	t.Parallel()
	large := `{"name":"n","type":"a","x":"` + strings.Repeat("x", bounds.Network) + `"}`
	_, err := netconf.Parse([]byte(large))
	want := wantError{kind: netconf.ErrInvalid, code: 7, text: "larger than 1 MiB"}
	want.check(t, err)
	_, err = netconf.Load(fstest.MapFS{"n.conf": {Data: []byte(large)}}, "n")
	nodetest.Says(t, err, want.text)

	n, err := netconf.Parse([]byte(`{"name":"n","type":"a"}`))
	if err == nil {
		n, err = n.EditPlugins(netconf.Set("x", strings.Repeat("x", bounds.Network)))
	}
	nodetest.OK(t, err)
	want.network = "n"
	want.check(t, n.CheckRequest(netconf.Request{}))
}

func TestTooManySelectionsAreRefused(t *testing.T) {
	t.Parallel()
	list := func(n int) string { return strings.TrimSuffix(strings.Repeat("a,", n), ",") }
	array := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat(`{"name":"a"},`, n), ",") + "]" }
	for _, annotation := range []func(int) string{list, array} {
		if got, err := netconf.ParseSelection(annotation(64)); len(got) != 64 || err != nil {
			t.Errorf("64 selections: %d, %v", len(got), err)
		}
		_, err := netconf.ParseSelection(annotation(65))
		wantError{kind: netconf.ErrInvalid, code: 7, text: "65 networks are selected, at most 64 are allowed"}.check(t, err)
		if got, err := netconf.ParseSelectionN(annotation(1024), 1024); len(got) != 1024 || err != nil {
			t.Errorf("1024 selections: %d, %v", len(got), err)
		}
		_, err = netconf.ParseSelectionN(annotation(2), 1)
		wantError{kind: netconf.ErrInvalid, code: 7, text: "2 networks are selected, at most 1 are allowed"}.check(t, err)
	}
}

func TestTooLongAnAnnotationIsRefused(t *testing.T) {
	t.Parallel()
	for _, annotation := range []string{
		`[{"name":"a","cni-args":{"x":"` + strings.Repeat("x", 256<<10) + `"}}]`,
		"a" + strings.Repeat(" ", 256<<10),
		strings.Repeat(" ", 256<<10+1),
	} {
		_, err := netconf.ParseSelection(annotation)
		wantError{kind: netconf.ErrInvalid, code: 7, text: "larger than 256 KiB"}.check(t, err)
	}
	if got, err := netconf.ParseSelection("a" + strings.Repeat(" ", 256<<10-1)); len(got) != 1 || err != nil {
		t.Errorf("256 KiB: %d, %v", len(got), err)
	}
}
