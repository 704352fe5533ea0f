//go:build unix

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate/delegatetest"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

func TestFlagsReachThePlugin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"files/etc/subnet": "in {dir}", "result": `{"cniVersion":"1.1.0","ips":[{"address":"10.1.2.3/24"}]}`,
		"conf": `{"type":"x","file":"{dir}/etc/subnet","master":"eth0","delegate":{"type":"fake","ipam":{"type":"host-local"}}}`,
	} {
		nodetest.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		nodetest.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	p := process{args: []string{
		"-conf", filepath.Join(dir, "conf"), "-files", filepath.Join(dir, "files"), "-fake", "fake=" + filepath.Join(dir, "result"),
		"-idle", "a, b", "-env", "A=1", "-env", "B=2=3", "-link", "up0", "-link", "eth0", "-daemon", "d -x 'a b'", "-kind", "Meta", "true",
	}, environ: []string{"CNI_PATH=/a" + string(filepath.ListSeparator) + "/b"}, stderr: os.Stderr}
	o, err := p.parse()
	nodetest.OK(t, err)
	conf, err := p.config(o)
	nodetest.OK(t, err)
	host := t.TempDir()
	stdin := conf.Stdin(host)
	if got := read(t, filepath.Join(host, "etc/subnet")); got != "in "+host || !strings.Contains(stdin, host+"/etc/subnet") {
		t.Errorf("configuration %s, file %q", stdin, got)
	}
	nodetest.Equal(t, "kind", conf.Kind, "meta")
	nodetest.Equal(t, "delegates, idle, environment, links, daemon, directories",
		[][]string{conf.Delegates, conf.Idle, o.env, conf.Links, o.daemon, o.dirs},
		[][]string{{"fake"}, {"a", "b"}, {"A=1", "B=2=3"}, {"up0", "eth0"}, {"d", "-x", "a b"}, {filepath.Dir(o.path), "/a", "/b"}})
	result, err := conf.Fakes["fake"](t.Context(), delegatetest.Call{Command: "ADD", Stdin: []byte(`{"cniVersion":"1.0.0"}`)})
	if err != nil || !strings.Contains(string(result), "10.1.2.3/24") {
		t.Errorf("result %s: %v", result, err)
	}
}

func TestDelegatesAndLinksAreFoundInTheConfiguration(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		conf             string
		delegates, links []string
	}{
		"IPAM":                     {`{"type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"10.0.0.0/8"}]]}}`, []string{"host-local"}, nil},
		"the plugin itself":        {`{"type":"ptp","ipam":{"type":"self","delegate":{"type":"other"}}}`, []string{"other"}, nil},
		"a policy":                 {`{"type":"ptp","policy":{"type":"k8s"},"ipam":{"type":"host-local"}}`, []string{"host-local"}, nil},
		"a plugin elsewhere":       {`{"type":"self","then":{"type":"good"},"else":[{"type":"README.md"},{"type":"../good"}]}`, []string{"good"}, nil},
		"a delegate's delegate":    {`{"type":"self","delegate":{"type":"bridge","master":"eth9","ipam":{"type":"host-local"}}}`, []string{"bridge"}, nil},
		"networks":                 {`{"delegates":[{"type":"b"},{"name":"n","plugins":[{"type":"c"},{"type":"a"}]},{"type":"b"}]}`, []string{"a", "b", "c"}, nil},
		"networks at another key":  {`{"choices":[{"name":"n","plugins":[{"type":"a"}]}],"plugins":{"type":"b"}}`, []string{"a", "b"}, nil},
		"what a runtime adds":      {`{"prevResult":{"ipam":{"type":"a"}},"runtimeConfig":{"delegate":{"type":"b"}},"args":{"delegate":{"type":"c"}}}`, nil, nil},
		"links":                    {`{"master":"eth1","a":{"device":"eth2","parent":"eth3"},"link":"eth4","links":[{"name":"eth5"},{"name":"eth1"}]}`, nil, []string{"eth2", "eth3", "eth4", "eth5", "eth1"}},
		"no names of links":        {`{"master":"","device":"/dev/tap","link":"a name","parent":"longer-than-a-name","links":[{"name":7},"x"],"other":"eth0"}`, nil, nil},
		"no object":                {`[{"ipam":{"type":"a"}}]`, nil, nil},
		"types that are no string": {`{"ipam":{"type":7},"delegate":{"type":""},"delegates":[{"type":"."}]}`, nil, nil},
	} {
		got := scan(json.RawMessage(tt.conf), "self", []string{"", "testdata"})
		slices.Sort(got.links)
		slices.Sort(tt.links)
		nodetest.Equal(t, name+": delegates and links", [][]string{got.delegates, got.links}, [][]string{tt.delegates, tt.links})
	}
}

func TestAMemberOfANetworkConfigurationList(t *testing.T) {
	t.Parallel()
	conf := file(t, `{"name":"pods","plugins":[{"type":"ptp","ipam":{"type":"host-local"}},{"type":"portmap"}]}`)
	for typ, want := range map[string]string{
		"portmap":    `{"name":"pods","type":"portmap"}`,
		"host-local": `{"ipam":{"type":"host-local"},"name":"pods","type":"ptp"}`,
	} {
		object, err := (&options{path: "/opt/cni/bin/" + typ, conf: conf}).object()
		nodetest.OK(t, err)
		nodetest.Equal(t, typ, string(object), want)
	}
}

func TestWordsOfACommand(t *testing.T) {
	t.Parallel()
	for command, want := range map[string][]string{
		"a":                {"a"},
		" a  b\tc ":        {"a", "b", "c"},
		`a 'b "c' "d 'e"`:  {"a", `b "c`, `d 'e`},
		`a\ b "c\"d" '\'`:  {"a b", `c"d`, `\`},
		`--x="a b"c '' ""`: {"--x=a bc", "", ""},
		"":                 nil,
		"a 'b":             nil,
		`a\`:               nil,
	} {
		got, err := words(command)
		nodetest.Equal(t, command, got, want)
		nodetest.Equal(t, command+": error", err != nil, want == nil)
	}
}

func TestFieldsAreToldAsFlags(t *testing.T) {
	t.Parallel()
	nodetest.Equal(t, "text",
		flags("needs Config.NetNS, Links or Binary.Daemon (Stdin); CNI_NETNS, NetNSes and Other stay"),
		"needs -netns, -link or -daemon (-conf, -files); CNI_NETNS, NetNSes and Other stay")
}
