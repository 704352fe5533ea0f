package main

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
)

// The keys of the runtime's configuration replace those of the plugin's own.
func TestConfigurationOfTheRuntimeWins(t *testing.T) {
	t.Parallel()
	if conf, err := (Config{}).complete(); err != nil || conf.StateDir != "/var/lib/cni/nri" || conf.ConfDir != "/etc/cni/nri/net.d" {
		t.Errorf("by default: %+v, %v", conf, err)
	}
	dir := t.TempDir()
	base := Config{Index: "42", ConfDir: "/own/net.d", BinDir: "/own/bin", StateDir: dir + "/own"}
	for text, want := range map[string]Config{
		"": {Index: "42", Name: "metacni", Socket: api.DefaultSocketPath, ConfDir: "/own/net.d", BinDir: "/own/bin", StateDir: dir + "/own", Sweep: Duration{time.Minute}},
		`{"confDir":"/c","stateDir":"` + dir + `/s/../t","margin":"1s","sweep":"2m","attachRunning":true,"index":"42"}`: {
			Index: "42", Name: "metacni", Socket: api.DefaultSocketPath, ConfDir: "/c", BinDir: "/own/bin", StateDir: dir + "/t",
			Margin: Duration{time.Second}, Sweep: Duration{2 * time.Minute}, AttachRunning: true,
		},
	} {
		p := Plugin{Config: base}
		if _, err := p.Configure(t.Context(), text, "test", "1.0"); err != nil || p.conf != want {
			t.Errorf("%s: %+v, %v", text, p.conf, err)
		}
		if _, err := p.Configure(t.Context(), text, "test", "1.0"); err != nil {
			t.Errorf("%s again: %v", text, err)
		}
		_, err := p.Configure(t.Context(), `{"binDir":"/b"}`, "test", "1.0")
		wantError(t, err, "nri: configuration has changed")
	}
	for text, why := range map[string]string{
		`{"confdirs":"/c"}`:           `unknown field "confdirs"`,
		`{"confDir":"c"}`:             `confDir: "c" is not an absolute path`,
		`{"stateDir":"/var/lib/cni"}`: "stateDir",
		`{"margin":"-1s"}`:            "negative",
		`{"margin":5}`:                "margin",
		`{"index":"7"}`:               "cannot be set",
		`{"socket":"/s"}`:             "cannot be set",
		`{} {}`:                       "more than one",
		`{`:                           "unexpected EOF",
	} {
		p := Plugin{Config: base}
		_, err := p.Configure(t.Context(), text, "test", "1.0")
		wantError(t, err, "nri: configuration: ", why)
	}
	for _, bad := range []Config{{Index: "x"}, {Name: "/"}, {BinDir: "bin"}} {
		if err := (&Plugin{Config: bad}).Run(t.Context()); err == nil {
			t.Errorf("%+v: no error", bad)
		}
	}
}

// README.md has each key, and what to set in the runtime.
func TestKeysAreDocumented(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	words := []string{"plugin_request_timeout", "nri_plugin_request_timeout", "DHCP"}
	for f := range slices.Values(reflect.VisibleFields(reflect.TypeFor[Config]())) {
		if key := f.Tag.Get("json"); key != "" {
			words = append(words, "| `"+key+"` |")
		}
	}
	for _, w := range words {
		if !strings.Contains(string(readme), w) {
			t.Errorf("README.md lacks %s", w)
		}
	}
}
