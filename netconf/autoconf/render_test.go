package autoconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/metacni/metacni/internal/bounds"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

// template is the plugin object of tests.
var template = plugin(`{"type":"multinet","name":"meta","cniDir":"/var/lib/cni/multinet","big":12345678901234567890.10}`)

func plugin(s string) netconf.Plugin { return must(netconf.ParsePlugin([]byte(s))) }

func primary(s string) netconf.File {
	return netconf.File{Name: "10-p.conflist", Network: must(netconf.Parse([]byte(s)))}
}

// published is what is published.
func published(t *testing.T, template netconf.Plugin, p netconf.File, path string) document {
	t.Helper()
	doc, err := newDocument(template, p, path)
	nodetest.OK(t, err)
	oracle(t, doc)
	return doc
}

// oracle has libcni read what is published, as runtimes do.
func oracle(t *testing.T, doc document) {
	t.Helper()
	if _, err := libcni.ConfListFromBytes(doc.data); err != nil {
		t.Errorf("libcni: %v: %s", err, doc.data)
	}
}

// What is published is a list, and every key of the template survives. The name is the
// template's, or the primary network's of now.
func TestRender(t *testing.T) {
	t.Parallel()
	const ours = `"cniDir":"/var/lib/cni/multinet"`
	lossless := string(must(primary(calico).Network.MarshalJSON()))
	for name, tt := range map[string]struct {
		template netconf.Plugin
		primary  string
		path     string
		network  string
		want     string
	}{
		"list": {
			template, calico, "", "meta",
			`{"cniVersion":"1.0.0","name":"meta","plugins":[{"big":12345678901234567890.10,"capabilities":{"portMappings":true},` + ours + `,"delegates":[` + lossless + `],"type":"multinet"}]}`,
		},
		"lone plugin": {
			template, flannel, "", "meta",
			`{"cniVersion":"0.3.1","name":"meta","plugins":[{"big":12345678901234567890.10,` + ours + `,"delegates":[{"cniVersion":"0.3.1","name":"flannel","plugins":[{"cniVersion":"0.3.1","name":"flannel","type":"flannel"}]}],"type":"multinet"}]}`,
		},
		"by path": {
			template, calico, "/etc/cni/net.d/x", "meta",
			`{"cniVersion":"1.0.0","name":"meta","plugins":[{"big":12345678901234567890.10,"capabilities":{"portMappings":true},"clusterNetwork":"/etc/cni/net.d/x",` + ours + `,"type":"multinet"}]}`,
		},
		"without a name": {
			plugin(`{"type":"multinet"}`), calico, "/x", "calico",
			`{"cniVersion":"1.0.0","name":"calico","plugins":[{"capabilities":{"portMappings":true},"clusterNetwork":"/x","type":"multinet"}]}`,
		},
	} {
		doc := published(t, tt.template, primary(tt.primary), tt.path)
		nodetest.Equal(t, name, string(doc.data), tt.want+"\n")
		if doc.network != tt.network || doc.primary != "10-p.conflist" {
			t.Errorf("%s: network %s in front of %s", name, doc.network, doc.primary)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// The version is the primary network's, as far as it is implemented.
func TestRenderVersion(t *testing.T) {
	t.Parallel()
	tests := []struct{ primary, template, want string }{
		{`"cniVersion":"1.1.0",`, ``, "1.1.0"},
		{`"cniVersion":"1.0.0",`, ``, "1.0.0"},
		{`"cniVersion":"1.0",`, ``, "1.0.0"},
		{`"cniVersion":"0.4.0",`, ``, "0.4.0"},
		{`"cniVersion":"0.9.0",`, ``, "0.4.0"},
		{`"cniVersion":"9.0.0",`, ``, "1.1.0"},
		{`"cniVersion":"",`, ``, "0.1.0"},
		{``, ``, "0.1.0"},
		{`"cniVersion":"0.4.0","cniVersions":["0.4.0","1.0.0","2.0.0"],`, ``, "0.4.0"}, // of a lone plugin
		{`"cniVersion":"1.1.0",`, `,"cniVersion":"0.4.0"`, "0.4.0"},
		{`"cniVersion":"0.3.1",`, `,"cniVersion":"1.0.0"`, "0.3.1"},
		{`"cniVersion":"1.0.0",`, `,"cniVersions":["0.4.0","1.1.0"]`, "1.0.0"},
	}
	for _, tt := range tests {
		p := primary(`{` + tt.primary + `"name":"x","type":"a"}`)
		before := string(must(p.Network.MarshalJSON()))
		data := string(published(t, plugin(`{"type":"multinet"`+tt.template+`}`), p, "").data)
		n := must(netconf.Parse([]byte(data)))
		nodetest.Equal(t, fmt.Sprintf("%s%s: version", tt.primary, tt.template), n.CNIVersion(), tt.want)
		if !strings.Contains(data, before) {
			t.Errorf("the primary network was changed: %s", data)
		}
	}
}

// Capabilities are those of now, whatever their types; the template's
// word on one stands.
func TestRenderCapabilities(t *testing.T) {
	t.Parallel()
	tests := []struct{ template, primary, want string }{
		{``, `{"type":"a","capabilities":{"b":true,"a":true,"no":false,"odd":"true"}},{"type":"c","capabilities":{"c":true}},{"type":"d","capabilities":[1]}`, `{"a":true,"b":true,"c":true}`},
		{``, `{"type":"a"}`, ``},
		{`,"capabilities":{"io.kubernetes.cri.pod-annotations":true}`, `{"type":"a","capabilities":{"mac":true}}`, `{"io.kubernetes.cri.pod-annotations":true,"mac":true}`},
		{`,"capabilities":{"mac":false}`, `{"type":"a","capabilities":{"mac":true,"ips":true}}`, `{"ips":true,"mac":false}`},
	}
	for _, tt := range tests {
		p := primary(`{"cniVersion":"1.0.0","name":"x","plugins":[` + tt.primary + `]}`)
		n, err := render(plugin(`{"type":"multinet"`+tt.template+`}`), p.Network, "")
		nodetest.OK(t, err)
		if got, _ := n.Plugins()[0].Get("capabilities"); string(got) != tt.want {
			t.Errorf("%s: %s, want %s", tt.primary, got, tt.want)
		}
	}
}

// What cannot be run is not published.
func TestRenderRefuses(t *testing.T) {
	t.Parallel()
	for template, want := range map[string]struct {
		key  string
		code uint
	}{
		`{}`:                                        {"type", 7},
		`{"type":"../x"}`:                           {"plugins[0].type", 7},
		`{"type":"multinet","name":"../x"}`:         {"name", 7},
		`{"type":"multinet","delegates":[]}`:        {"delegates", 7},
		`{"type":"multinet","clusterNetwork":"x"}`:  {"clusterNetwork", 7},
		`{"type":"multinet","capabilities":[]}`:     {"capabilities", 6},
		`{"type":"multinet","cniVersion":"banana"}`: {"cniVersion", 7},
		`{"type":"multinet","cniVersion":"0.0.9"}`:  {"cniVersion", 7},
		`{"type":"multinet","k":1e9999}`:            {"plugins[0].k", 6},
		`{"type":"multinet","k":"` + strings.Repeat("x", bounds.Network) + `"}`: {"", 7},
	} {
		doc, err := newDocument(plugin(template), primary(calico), "")
		var cause *netconf.Error
		if !errors.Is(err, ErrInvalid) || !errors.As(err, &cause) || cause.Key != want.key || status.Code(err) != want.code || !doc.isZero() {
			t.Errorf("%.50s: %v, code %d", template, err, status.Code(err))
		}
	}
	if _, err := newDocument(template, primary(calico), "/etc/cni/net.d/\xff.conf"); !errors.Is(err, ErrInvalid) {
		t.Errorf("a path that would be another: %v", err)
	}
}

// FuzzRender: whatever can be the primary network has a configuration, which
// libcni and we read, and which holds that network as it was.
func FuzzRender(f *testing.F) {
	for _, s := range []string{calico, flannel, `{"name":"x","plugins":[{"type":"a","<":1e9999}],"cniVersions":["1.0.0"]}`, `{"name":"x","type":"a","\u2028":"&"}`, `{"name":"x","type":"a","capabilities":{"":true}}`} {
		f.Add([]byte(s), `{"type":"multinet"}`, "")
		f.Add([]byte(s), `{"type":"multinet","name":"m","cniVersion":"0.4.0"}`, "/p")
	}
	// Every JSON type in every place of a network is passed over or read.
	values := []string{`null`, `true`, `0`, `-1e400`, `"x"`, `""`, `[]`, `[null]`, `[[]]`, `{}`, `{"a":1}`, `[{}]`, `[1]`, `"\ud800"`}
	places := []string{
		`%s`, `[%s]`, `{"name":%s,"type":"a"}`, `{"name":"x","type":%s}`, `{"name":"x","cniVersion":%s,"type":"a"}`,
		`{"name":"x","cniVersions":%s,"type":"a"}`, `{"name":"x","cniVersions":[%s],"type":"a"}`, `{"name":"x","plugins":%s}`,
		`{"name":"x","plugins":[%s]}`, `{"name":"x","plugins":[{"type":%s}]}`, `{"name":"x","plugins":[{"type":"a","capabilities":%s}]}`,
		`{"name":"x","plugins":[{"type":"a","capabilities":{"b":%s}}]}`, `{"name":"x","type":"a","ipam":%s}`, `{"name":"x","type":"a","dns":%s}`,
		`{"name":"x","type":"a","prevResult":%s}`, `{"name":"x","plugins":[{"type":"a"}],"disableCheck":%s}`,
		`{"name":"x","plugins":[{"type":"a"}],"loadOnlyInlinedPlugins":%s}`, `{"name":"x","type":"a","delegates":%s}`,
		`{"name":"x","type":"a","args":{"cni":%s}}`, `{"name":"x","type":"a","unknown":%s}`, `{"name":"x","type":"a","unknown":%[1]s,"unknown":%[1]s}`,
	}
	for _, place := range places {
		for _, value := range values {
			f.Add(fmt.Appendf(nil, place, value), `{"type":"multinet"}`, "")
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, text, path string) {
		found := finding("", nil).find(tree("10-p.conf", string(data)))
		ours, err := netconf.ParsePlugin([]byte(text))
		if found.primary.Name == "" || err != nil {
			return
		}
		p := found.primary
		doc, err := newDocument(ours, p, path)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		oracle(t, doc)
		back, err := netconf.Parse(doc.data)
		if err != nil || back.Name() != doc.network {
			t.Fatalf("%v: %s", err, doc.data)
		}
		if path == "" {
			raw, _ := back.Plugins()[0].Get("delegates")
			var delegates []netconf.Network
			if err := json.Unmarshal(raw, &delegates); err != nil || len(delegates) != 1 || !delegates[0].Equal(p.Network) {
				t.Fatalf("%v: %s does not hold %s", err, doc.data, data)
			}
		}
		if again, _ := newDocument(ours, p, path); !bytes.Equal(again.data, doc.data) {
			t.Fatal("another result for the same")
		}
	})
}
