package dra

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

const bridge = `{"cniVersion":"1.1.0","name":"storage","type":"bridge"}`

// own returns parameters of this package's kind.
func own(rest string) string {
	return `{"apiVersion":"dra.metacni.io/v1alpha1","kind":"Network"` + rest + `}`
}

// cni returns parameters of the kind of cni-dra-driver.
func cni(rest string) string {
	return `{"apiVersion":"cni.networking.x-k8s.io/v1alpha1","kind":"CNI"` + rest + `}`
}

// parsed returns the network in parameters of a claim in the namespace blue.
func parsed(data string) (Network, error) {
	var n Network
	err := n.parse([]byte(data), "blue")
	return n, err
}

func TestParametersNameOneNetwork(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		data string
		want Network
	}{
		"a definition of the claim's namespace": {own(`,"definition":"storage"`), Network{Definition: nad.Ref{Namespace: "blue", Name: "storage"}}},
		"a definition of another namespace":     {own(`,"definition":"red/storage","ifName":"net1"`), Network{IfName: "net1", Definition: nad.Ref{Namespace: "red", Name: "storage"}}},
		"a config as a string":                  {own(`,"config":"{ \"b\":1.0, \"a\":1e3 }"`), Network{Config: `{ "b":1.0, "a":1e3 }`}},
		"CNI":                                   {cni(`,"ifName":"net1","config":` + bridge), Network{IfName: "net1", Config: bridge}},
		"CNI without an interface":              {cni(`,"config":` + bridge), Network{Config: bridge}},
		"CNIConfig": {
			`{"kind":"CNIConfig","apiVersion":"cni.networking.x-k8s.io/v1alpha1","config":` + bridge + `}`, Network{Config: bridge},
		},
		"CNI of the other group": {
			`{"kind":"CNI","apiVersion":"cni.dra.networking.x-k8s.io/v1alpha1","config":` + bridge + `}`, Network{Config: bridge},
		},
		"CNIConfig of the other group": {
			`{"kind":"CNIConfig","apiVersion":"cni.dra.networking.x-k8s.io/v1alpha1","config":` + bridge + `}`, Network{Config: bridge},
		},
		"exactly 10 KiB": {padded(maxParameters), Network{Definition: nad.Ref{Namespace: "blue", Name: "storage"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parsed(row.data)
			nodetest.OK(t, err)
			nodetest.Equal(t, "network", got, row.want)
		})
	}
}

// padded returns valid parameters of that many bytes.
func padded(size int) string {
	return strings.Replace(own(`,"definition":"storage"`), ",", ","+strings.Repeat(" ", size-len(own(`,"definition":"storage"`))), 1)
}

// forms are configurations that JSON programs like to rewrite.
func forms() map[string]string {
	const rest = `,"cniVersion":"1.1.0","name":"storage","type":"bridge"}`
	return map[string]string{
		"sorted":             `{"a":1,"b":2` + rest,
		"not sorted":         `{"b":2,"a":1` + rest,
		"a decimal zero":     `{"a":1.0` + rest,
		"an exponent":        `{"a":1e3` + rest,
		"twenty digits":      `{"a":12345678901234567890` + rest,
		"blanks":             "{ \"a\" : 1 ,\n\t\"b\":2" + rest,
		"escaped characters": `{"a":"\u003c\/\u00e9"` + rest,
		"a nested object":    `{"z":{"y":[1.50,{"b":null,"a":true}]}` + rest,
	}
}

func TestConfigsKeepTheirBytes(t *testing.T) {
	t.Parallel()
	for name, config := range forms() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parsed(cni(`,"config":` + config))
			if err != nil || got.Config != config {
				t.Errorf("got %q, %v", got.Config, err)
			}
			nodetest.OK(t, got.check("blue", Config{AllowedTypes: []string{"bridge"}}))
		})
	}
}

func TestWrongParametersAreRefused(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		data string
		kind error
		key  string
	}{
		"nothing":                    {``, netconf.ErrDecode, ""},
		"null":                       {`null`, netconf.ErrDecode, ""},
		"a list":                     {`[]`, netconf.ErrDecode, ""},
		"broken JSON":                {own(`,"definition":`), netconf.ErrDecode, ""},
		"two objects":                {own(`,"definition":"a"`) + `{}`, netconf.ErrDecode, ""},
		"a key twice":                {own(`,"definition":"a","definition":"b"`), netconf.ErrDecode, "definition"},
		"no kind":                    {`{"definition":"a"}`, netconf.ErrInvalid, "kind"},
		"another kind":               {`{"apiVersion":"dra.metacni.io/v1alpha1","kind":"CNI","config":{}}`, netconf.ErrInvalid, "kind"},
		"another version":            {`{"apiVersion":"dra.metacni.io/v1","kind":"Network","definition":"a"}`, netconf.ErrInvalid, "kind"},
		"a kind that is no string":   {`{"apiVersion":1,"kind":"CNI"}`, netconf.ErrDecode, "apiVersion"},
		"another version of CNI":     {`{"apiVersion":"cni.networking.x-k8s.io/v1","kind":"CNI","config":{}}`, netconf.ErrInvalid, "kind"},
		"an unknown key":             {own(`,"definition":"a","ips":[]`), netconf.ErrInvalid, "ips"},
		"a key in another case":      {own(`,"Definition":"a"`), netconf.ErrInvalid, "definition"},
		"an unknown key beside CNI":  {cni(`,"config":{},"ifname":"net1"`), netconf.ErrInvalid, "ifname"},
		"no network":                 {own(``), netconf.ErrInvalid, "definition"},
		"two networks":               {own(`,"definition":"a","config":"{}"`), netconf.ErrInvalid, "definition"},
		"a config that is an object": {own(`,"config":{}`), netconf.ErrDecode, "config"},
		"a definition that is null":  {own(`,"definition":null`), netconf.ErrDecode, "definition"},
		"a path for a definition":    {own(`,"definition":"../a"`), netconf.ErrInvalid, "definition"},
		"no config":                  {cni(``), netconf.ErrInvalid, "config"},
		"a config that is null":      {cni(`,"config":null`), netconf.ErrDecode, "config"},
		"a config that is a string":  {cni(`,"config":"{}"`), netconf.ErrDecode, "config"},
		"a number for an interface":  {cni(`,"ifName":1,"config":{}`), netconf.ErrDecode, "ifName"},
		"a path for an interface":    {cni(`,"ifName":"a/b","config":{}`), netconf.ErrInvalid, "ifName"},
		"an interface of 16 bytes":   {cni(`,"ifName":"` + strings.Repeat("a", 16) + `","config":{}`), netconf.ErrInvalid, "ifName"},
		"10 KiB and a byte":          {padded(maxParameters + 1), netconf.ErrInvalid, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parsed(row.data)
			var e *netconf.Error
			if !errors.As(err, &e) || !errors.Is(err, row.kind) || e.Key != row.key {
				t.Errorf("got %+v, %v; want %v of key %q", got, err, row.kind, row.key)
			}
		})
	}
}

func TestANetworkWithoutAVersionHasThatOfTheRules(t *testing.T) {
	t.Parallel()
	rules := nad.Rules{CNIVersion: "1.0.0"}
	for config, want := range map[string]string{
		bridge:                         "1.1.0",
		`{"name":"n","type":"bridge"}`: "1.0.0",
	} {
		n, err := (Network{Config: config}).Network(rules)
		if err != nil || n.CNIVersion() != want {
			t.Errorf("%s: %q, %v, want %s", config, n.CNIVersion(), err, want)
		}
	}
}

// Whatever is accepted has one network, and is the same when it is read again.
func FuzzParseParameters(f *testing.F) {
	for _, config := range forms() {
		f.Add([]byte(cni(`,"ifName":"net1","config":` + config)))
	}
	f.Add([]byte(own(`,"definition":"red/storage"`)))
	f.Add([]byte(own(`,"config":"{}"`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := parsed(string(data))
		if err != nil {
			if !errors.As(err, new(*netconf.Error)) {
				t.Fatalf("%+v, %v", p, err)
			}
			return
		}
		if (p.Config == "") == (p.Definition == nad.Ref{}) {
			t.Fatalf("not one network: %+v", p)
		}
		var head struct{ Kind string }
		nodetest.OK(t, json.Unmarshal(data, &head))
		if head.Kind != parametersKind && !strings.Contains(string(data), p.Config) {
			t.Fatalf("%q is not written in %q", p.Config, data)
		}
		again, err := parsed(string(data))
		if diff := cmp.Diff(p, again); diff != "" || err != nil {
			t.Fatal(diff, err)
		}
		_ = p.check("blue", Config{Rules: nad.Rules{Own: []string{"multinet"}}}) // never panics
	})
}

// What the manifests of multinetd have as examples is what the driver reads.
func TestTheExamplesAreParameters(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../../examples/multinetd/deploy/dra/examples/*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		nodetest.OK(t, err)
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			_, parameters, ok := strings.Cut(document, "parameters:\n")
			if !ok {
				continue
			}
			data, err := yaml.YAMLToJSON([]byte(parameters))
			nodetest.OK(t, err)
			n, err := parsed(string(data))
			nodetest.OK(t, err)
			n.OfClass = true
			if err := n.check("blue", Config{}); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}
