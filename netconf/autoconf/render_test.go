package autoconf

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

// template is the plugin object of tests.
var template = plugin(`{"type":"multinet","name":"meta","cniDir":"/var/lib/cni/multinet","big":12345678901234567890.10}`)

func plugin(s string) netconf.Plugin {
	p, err := netconf.ParsePlugin([]byte(s))
	if err != nil {
		panic(err)
	}
	return p
}

func primary(s string) candidate {
	n, err := netconf.Parse([]byte(s))
	if err != nil {
		panic(err)
	}
	return candidate{File: netconf.File{Name: "10-p.conflist", Network: n}}
}

// rendered returns what is published, as text.
func rendered(t *testing.T, template netconf.Plugin, p candidate) string {
	t.Helper()
	n, err := render(template, p)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := write(n)
	if err != nil {
		t.Fatal(err)
	}
	oracle(t, doc)
	return strings.TrimSuffix(string(doc.data), "\n")
}

// oracle has libcni read what is published, as runtimes do.
func oracle(t *testing.T, doc document) {
	t.Helper()
	if _, err := libcni.ConfListFromBytes(doc.data); err != nil {
		t.Errorf("libcni: %v: %s", err, doc.data)
	}
}

// What is published is a list, and every key of the template survives.
func TestRender(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		p    candidate
		want string
	}{
		{
			"list", primary(calico),
			`{"cniVersion":"1.0.0","name":"meta","plugins":[{"big":12345678901234567890.10,"capabilities":{"portMappings":true},"cniDir":"/var/lib/cni/multinet","delegates":[` + calico + `],"type":"multinet"}]}`,
		},
		{
			"lone plugin", primary(flannel),
			`{"cniVersion":"0.3.1","name":"meta","plugins":[{"big":12345678901234567890.10,"cniDir":"/var/lib/cni/multinet","delegates":[{"cniVersion":"0.3.1","name":"flannel","plugins":[{"cniVersion":"0.3.1","name":"flannel","type":"flannel"}]}],"type":"multinet"}]}`,
		},
		{
			"by path",
			candidate{File: primary(calico).File, path: "/etc/cni/net.d/x"},
			`{"cniVersion":"1.0.0","name":"meta","plugins":[{"big":12345678901234567890.10,"capabilities":{"portMappings":true},"clusterNetwork":"/etc/cni/net.d/x","cniDir":"/var/lib/cni/multinet","type":"multinet"}]}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := rendered(t, template, tt.p)
			want := strings.ReplaceAll(tt.want, calico, string(must(tt.p.Network.MarshalJSON())))
			nodetest.Equal(t, "got", got, want)
		})
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
		{`"cniVersion":"0.4.0","cniVersions":["0.4.0","1.0.0","2.0.0"],`, ``, "1.0.0"},
		{`"cniVersion":"1.1.0",`, `,"cniVersion":"0.4.0"`, "0.4.0"},
		{`"cniVersion":"0.3.1",`, `,"cniVersion":"1.0.0"`, "0.3.1"},
		{`"cniVersion":"1.1.0",`, `,"cniVersions":["0.4.0","1.0.0"]`, "1.0.0"},
	}
	for _, tt := range tests {
		p := primary(`{` + tt.primary + `"name":"x","type":"a"}`)
		before := string(must(p.Network.MarshalJSON()))
		data := rendered(t, plugin(`{"type":"multinet"`+tt.template+`}`), p)
		n := must(netconf.Parse([]byte(data)))
		if n.CNIVersion() != tt.want {
			t.Errorf("%s%s: version %s, want %s", tt.primary, tt.template, n.CNIVersion(), tt.want)
		}
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
		n, err := render(plugin(`{"type":"multinet"`+tt.template+`}`), p)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := n.Plugins()[0].Get("capabilities"); string(got) != tt.want {
			t.Errorf("%s: %s, want %s", tt.primary, got, tt.want)
		}
	}
}

// The name is the template's, or the primary network's of now.
func TestRenderName(t *testing.T) {
	t.Parallel()
	for template, want := range map[string]string{`{"type":"multinet"}`: "calico", `{"type":"multinet","name":"meta"}`: "meta"} {
		n, err := render(plugin(template), primary(calico))
		if err != nil || n.Name() != want {
			t.Errorf("%s: name %q, %v; want %q", template, n.Name(), err, want)
		}
	}
}

func TestRenderRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		template, key string
		code          uint
	}{
		{`{}`, "type", 7},
		{`{"type":"multinet","delegates":[]}`, "delegates", 7},
		{`{"type":"multinet","clusterNetwork":"x"}`, "clusterNetwork", 7},
		{`{"type":"multinet","capabilities":[]}`, "capabilities", 6},
		{`{"type":"multinet","cniVersion":"banana"}`, "cniVersion", 7},
	} {
		_, err := render(plugin(tt.template), primary(calico))
		var cause *netconf.Error
		if !errors.Is(err, ErrInvalid) || !errors.As(err, &cause) || cause.Key != tt.key || status.Code(err) != tt.code {
			t.Errorf("%s: %v, code %d", tt.template, err, status.Code(err))
		}
	}
}

func TestRenderPath(t *testing.T) {
	t.Parallel()
	p := primary(calico)
	p.path = "/etc/cni/net.d/\xff.conf"
	if _, err := render(template, p); !errors.Is(err, ErrInvalid) {
		t.Errorf("a path that would be another: %v", err)
	}
}

// What is published can be run.
func TestWriteVerifies(t *testing.T) {
	t.Parallel()
	bad := map[string]netconf.Network{
		"zero":           {},
		"no name":        netconf.Single(plugin(`{"type":"a"}`)),
		"no type":        netconf.Single(plugin(`{"name":"x"}`)),
		"name is a path": netconf.Single(plugin(`{"name":"../x","type":"a"}`)),
		"number":         netconf.Single(plugin(`{"name":"x","type":"a","k":1e9999}`)),
		"too large":      netconf.Single(plugin(`{"name":"x","type":"a","k":"` + strings.Repeat("x", sizeLimit) + `"}`)),
	}
	for name, n := range bad {
		if doc, err := write(n); err == nil || !errors.Is(err, ErrInvalid) || doc.data != nil {
			t.Errorf("%s: %v, %s", name, err, doc.data)
		}
	}
}

// FuzzRender: whatever can be the primary network has a configuration, which
// libcni and we read, and which holds that network as it was.
func FuzzRender(f *testing.F) {
	for _, s := range []string{calico, flannel, `{"name":"x","plugins":[{"type":"a","<":1e9999}],"cniVersions":["1.0.0"]}`, `{"name":"x","type":"a","\u2028":"&"}`, `{"name":"x","type":"a","capabilities":{"":true}}`} {
		f.Add([]byte(s), `{"type":"multinet"}`, "")
		f.Add([]byte(s), `{"type":"multinet","name":"m","cniVersion":"0.4.0"}`, "/p")
	}
	f.Fuzz(func(t *testing.T, data []byte, text, path string) {
		found := finder{own: our()}.find(tree("10-p.conf", string(data)))
		ours, err := netconf.ParsePlugin([]byte(text))
		if found.primary.Name == "" || err != nil {
			return
		}
		p := found.primary
		p.path = path
		n, err := render(ours, p)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		doc, err := write(n)
		if err != nil {
			return
		}
		oracle(t, doc)
		back, err := netconf.Parse(doc.data)
		if err != nil || back.Name() != n.Name() {
			t.Fatalf("%v: %s", err, doc.data)
		}
		if path == "" {
			raw, _ := back.Plugins()[0].Get("delegates")
			var delegates []netconf.Network
			if err := json.Unmarshal(raw, &delegates); err != nil || len(delegates) != 1 || !delegates[0].Equal(p.Network) {
				t.Fatalf("%v: %s does not hold %s", err, doc.data, data)
			}
		}
		again, _ := render(ours, p)
		if !again.Equal(n) {
			t.Fatal("another result for the same")
		}
	})
}
