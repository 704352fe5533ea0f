package main

import (
	"errors"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
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
		"": {Index: "42", Name: "metacni", Socket: api.DefaultSocketPath, ConfDir: "/own/net.d", BinDir: "/own/bin", StateDir: dir + "/own", Sweep: multinet.Duration(time.Minute), KubeletDir: "/var/lib/kubelet"},
		`{"confDir":"/c","stateDir":"` + dir + `/s/../t","margin":"1s","sweep":"2m","attachRunning":true,"index":"42"}`: {
			Index: "42", Name: "metacni", Socket: api.DefaultSocketPath, ConfDir: "/c", BinDir: "/own/bin", StateDir: dir + "/t",
			Margin: multinet.Duration(time.Second), Sweep: multinet.Duration(2 * time.Minute), AttachRunning: true, KubeletDir: "/var/lib/kubelet",
		},
	} {
		p := Plugin{Config: base, Logger: slog.New(slog.DiscardHandler)}
		if _, err := p.Configure(t.Context(), text, "test", "1.0"); err != nil || !reflect.DeepEqual(p.opened.Load().conf, want) {
			t.Errorf("%s: %+v, %v", text, p.opened.Load(), err)
		}
		if _, err := p.Configure(t.Context(), text, "test", "1.0"); err != nil {
			t.Errorf("%s again: %v", text, err)
		}
		_, err := p.Configure(t.Context(), `{"binDir":"/b"}`, "test", "1.0")
		nodetest.Says(t, err, "nri: configuration has changed")
	}
	for text, why := range map[string]string{
		`{"confdirs":"/c"}`:           `unknown field "confdirs"`,
		`{"confDir":"c"}`:             `confDir "c" is not an absolute path`,
		`{"stateDir":"/var/lib/cni"}`: "stateDir",
		`{"margin":"-1s"}`:            "negative",
		`{"index":"7"}`:               "cannot be set",
		`{"socket":"/s"}`:             "cannot be set",
		`{} {}`:                       "after top-level value",
	} {
		p := Plugin{Config: base, Logger: slog.New(slog.DiscardHandler)}
		_, err := p.Configure(t.Context(), text, "test", "1.0")
		nodetest.Says(t, err, "nri: configuration: ", why)
	}
	for _, bad := range []Config{{Index: "x"}, {Name: "/"}, {BinDir: "bin"}} {
		nodetest.Refused(t, "a bad configuration", (&Plugin{Config: bad}).Run(t.Context()))
	}
}

// What is said about claims is checked before the plugin starts.
func TestKeysOfClaimsAreChecked(t *testing.T) {
	t.Parallel()
	const driver = `{"nodeName":"node1","dra":{"driver":"net.example.com"`
	for text, why := range map[string]string{
		driver + `,"networks":[{"network":"My_Net","exclusive":true,"attributes":{"speed":"fast"}},{"network":"shop/my.net","device":"other"}],"metadata":true,"cdiDir":"/c","allowedTypes":["a"]},"kubeconfig":"/k","kubeletDir":"/l","namespaceIsolation":true,"globalNamespaces":"a, b","allowedTypes":["bridge"]}`: "",
		`{"maxSelections":1025}`:                                   "maxSelections: 1025 is not a whole number from 1 to 1024",
		`{"dra":{"allowedTypes":["a"]}}`:                           "dra: driver is missing",
		`{"dra":{"driver":"net.example.com"}}`:                     "dra needs nodeName",
		`{"nodeName":"n","dra":{"driver":"Net"}}`:                  "DNS subdomain",
		driver + `},"kubeconfig":"k"}`:                             "kubeconfig",
		driver + `},"globalNamespaces":"A"}`:                       "globalNamespaces",
		driver + `,"cdiDir":"c"}}`:                                 "cdiDir",
		driver + `,"networks":[{"network":"a","exclusve":true}]}}`: "exclusve",
	} {
		conf, err := (Config{}).With([]byte(text))
		if err == nil {
			_, err = conf.complete()
		}
		if why == "" && err != nil {
			t.Errorf("%s: %v", text, err)
		} else if why != "" {
			nodetest.Says(t, err, "nri: configuration: ", why)
		}
	}
	for _, edit := range map[string]func(*Config){
		"no cluster": func(c *Config) { c.Kubeconfig = "" },
		"no place for sockets": func(c *Config) {
			c.Kubeconfig = "/nowhere/kubeconfig"
			nodetest.OK(t, errors.Join(os.Mkdir(c.KubeletDir+"/plugins_registry", 0o700), os.WriteFile(c.KubeletDir+"/plugins", nil, 0o600)))
		},
	} {
		p := Plugin{Logger: slog.New(slog.DiscardHandler), Config: Config{StateDir: t.TempDir(), NodeName: "node1", KubeletDir: t.TempDir(), DRA: DRA{Driver: driverName}}}
		edit(&p.Config)
		for range 2 {
			_, err := p.Configure(t.Context(), "", "test", "1.0")
			nodetest.Says(t, err, "nri: dra: ")
		}
		_, err := p.Synchronize(t.Context(), nil, nil)
		nodetest.Is(t, err, errUnconfigured) // from a runtime that goes on
	}
}

// README.md has each key, and what to set in the runtime.
func TestKeysAreDocumented(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	nodetest.OK(t, err)
	words := []string{"plugin_request_timeout", "nri_plugin_request_timeout", "DHCP"}
	for _, key := range []string{"driver", "networks", "networks[].network", "networks[].device", "networks[].exclusive", "networks[].attributes", "metadata", "cdiDir"} {
		words = append(words, "| `"+key+"` |")
	}
	for f := range slices.Values(reflect.VisibleFields(reflect.TypeFor[Config]())) {
		if key := f.Tag.Get("json"); key != "" {
			words = append(words, "| `"+key+"` |")
		}
	}
	nodetest.Contains(t, "README.md", string(readme), words...)
}
