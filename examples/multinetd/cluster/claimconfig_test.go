package cluster

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/metacni/metacni/delegate/kube/dra"
)

const driverName = "net.example.com"

func TestKeysAboutClaimsAreChecked(t *testing.T) {
	t.Parallel()
	const driver = `"driver":"net.example.com"`
	network := func(keys string) string { return driver + `,"networks":[{` + keys + `}]` }
	for _, tt := range []struct {
		keys string
		want DRA
		errs string
	}{
		{keys: driver, want: DRA{Driver: driverName}},
		{keys: driver + `,"allowedTypes":["macvlan"]`, want: DRA{Driver: driverName, AllowedTypes: []string{"macvlan"}}},
		{keys: driver + `,"networks":[]`, want: DRA{Driver: driverName, Networks: []dra.Offer{}}},
		{
			keys: driver + `,"networks":[{"network":"kube-system/storage.v2","exclusive":true,"attributes":{"speed":"fast","example.com/rack":"7"}},{"device":"x","network":"My_Net"},{"network":"_My_Net"}],
				"metadata":true,"cdiDir":"/cdi","rollingUpdate":true`,
			want: DRA{
				Driver: driverName, Metadata: true, CDIDir: "/cdi", RollingUpdate: true,
				Networks: []dra.Offer{
					{Network: "kube-system/storage.v2", Exclusive: true, Attributes: map[string]string{"speed": "fast", "example.com/rack": "7"}},
					{Device: "x", Network: "My_Net"},
					{Network: "_My_Net"},
				},
			},
		},
		{keys: ``, errs: "dra: driver: missing"},
		{keys: `"driver":""`, errs: "dra: driver: missing"},
		{keys: `"driver":"Net.example.com"`, errs: `driver "Net.example.com" is not a DNS subdomain`},
		{keys: `"driver":"net/example"`, errs: "DNS subdomain"},
		{keys: `"driver":"` + strings.Repeat("a.", 40) + `a"`, errs: "at most 63"},
		{keys: `"driver":7`, errs: "driver"},
		{keys: driver + `,"network":[]`, errs: `"network"`},
		{keys: driver + `,"networks":{}`, errs: "networks"},
		{keys: driver + `,"networks":["a"]`, errs: "networks"},
		{keys: driver + `,"metadata":"yes"`, errs: "metadata"},
		{keys: driver + `,"rollingUpdate":1`, errs: "rollingUpdate"},
		{keys: driver + `,"cdiDir":"run/cdi"`, errs: `cdiDir "run/cdi"`},
		{keys: network(``), errs: "networks[0]: network: missing"},
		{keys: network(`"network":"a","exclusve":true`), errs: `"exclusve"`},
		{keys: network(`"network":"a","exclusive":"no"`), errs: "exclusive"},
		{keys: network(`"network":"a","attributes":{"x":1}`), errs: "attributes"},
		{keys: network(`"network":"a","attributes":{"x y":"1"}`), errs: `"x y"`},
		{keys: network(`"network":"a","attributes":{"x":"` + strings.Repeat("1", 65) + `"}`), errs: "longer than 64"},
		{keys: network(`"network":"a/b/c"`), errs: `"a/b/c"`},
		{keys: network(`"network":"A/b"`), errs: `"A/b"`},
		{keys: network(`"network":"a/"`), errs: `"a/"`},
		{keys: network(`"network":"a","device":"A"`), errs: `"A"`},
		{keys: network(`"network":"___"`), errs: `device ""`},
		{keys: network(`"network":"a/b"},{"network":"a/b","device":"c"`), errs: `networks[1]: network "a/b" is listed twice`},
		{keys: network(`"network":"a/b"},{"network":"c/b"`), errs: `networks[1]: two networks are the device "b"`},
	} {
		got, err := read(t, `{"dra":{`+tt.keys+`}}`)
		if tt.errs != "" {
			if err == nil || !strings.Contains(err.Error(), tt.errs) {
				t.Errorf("%s: err = %v, want %q", tt.keys, err, tt.errs)
			}
			continue
		}
		if diff := cmp.Diff(&tt.want, got.DRA, cmpopts.IgnoreUnexported(DRA{})); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", tt.keys, err, diff)
		}
	}
	for _, keys := range []string{`{"dra":"net.example.com"}`, `{"dra":[]}`, `{"dra":true}`} {
		if _, err := read(t, keys); err == nil {
			t.Errorf("%s: no error", keys)
		}
	}
	if c, err := read(t, `{"dra":null}`); c.DRA != nil || err != nil {
		t.Errorf("null: %+v, %v", c.DRA, err)
	}
}

func TestClaimsNeedAClusterAndANode(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		conf Config
		env  map[string]string
		errs string
	}{
		{Config{}, nil, "dra needs a kubeconfig"},
		{Config{Node: "n1"}, nil, "dra needs a kubeconfig"},
		{Config{Kubeconfig: "/k"}, nil, "dra needs nodeName"},
		{Config{Kubeconfig: "/k", Reconcile: true}, nil, "dra needs nodeName"},
		{Config{Kubeconfig: "/k", Node: "n1"}, nil, ""},
		{Config{Kubeconfig: "/k"}, map[string]string{"NODE_NAME": "n1"}, ""},
		{Config{Kubeconfig: "/k", Node: "n1", DRA: &DRA{RollingUpdate: true}}, nil, "rollingUpdate needs POD_UID"},
		{Config{Kubeconfig: "/k", Node: "n1", DRA: &DRA{RollingUpdate: true}}, map[string]string{"POD_UID": "u1"}, ""},
	} {
		c := tt.conf
		if c.DRA == nil {
			c.DRA = &DRA{}
		}
		err := c.Discover(func(key string) string { return tt.env[key] }, t.TempDir()+"/none")
		if tt.errs == "" && err != nil || tt.errs != "" && (err == nil || !strings.Contains(err.Error(), tt.errs)) {
			t.Errorf("%+v: err = %v, want %q", tt.conf, err, tt.errs)
		}
		if err == nil && !c.watchPods() {
			t.Errorf("%+v: pods are not watched", tt.conf)
		}
	}
}
