package multinet

import (
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
)

// A mistake in the configuration is found before a plugin runs. The error has the
// right code and names file, network and key.
func TestBadConfiguration(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, keys string
		code       uint
		says       []string
	}{
		{"no delegates", ``, 7, []string{`"multi"`, `"delegates"`}},
		{"empty delegates", `"delegates":[]`, 7, []string{`"multi"`, `"delegates"`}},
		{"null delegate", `"delegates":[{"type":"bridge"},null]`, 7, []string{`"multi"`, `"delegates[1]"`}},
		{"delegate without type", `"delegates":[{"type":"bridge"},{"name":"x"}]`, 7, []string{`"delegates[1].plugins"`, `"type"`}},
		{"a type that is a path", `"delegates":[{"type":"../bridge"}]`, 7, []string{`"multi"`, `"../bridge"`}},
		{"a plugin that is missing", `"delegates":[{"type":"bridge"},{"type":"absent","name":"x"}]`, 7, []string{`"x"`, `"absent"`, "not found"}},
		{"itself", `"delegates":[{"type":"bridge"},{"type":"multinet","name":"x"}]`, 7, []string{`"x"`, `"multinet"`, "itself"}},

		{"clusterNetwork of the wrong type", `"clusterNetwork":["x"]`, 6, []string{`"multi"`, `"clusterNetwork"`}},
		{"clusterNetwork that is unknown", `"clusterNetwork":"absent"`, 7, []string{`"multi"`, `clusterNetwork`, `"absent"`, "net.d"}},
		{"clusterNetwork in a bad file", `"clusterNetwork":"bad"`, 7, []string{`"bad"`, "net.d", "bad.conf", `"type"`}},
		{"clusterNetwork in a missing file", `"clusterNetwork":"/absent/x.conf"`, 7, []string{`"multi"`, "clusterNetwork", "/absent/x.conf"}},
		{"clusterNetwork that leads out", `"clusterNetwork":"../x"`, 7, []string{`"../x"`, "clusterNetwork"}},
		{"clusterNetwork that is a directory", `"clusterNetwork":"/"`, 7, []string{`"multi"`, "clusterNetwork", `"/"`}},
		{"defaultNetworks of the wrong type", keys(bridge, `"defaultNetworks":"x"`), 6, []string{`"multi"`, `"defaultNetworks"`}},
		{"defaultNetworks that is unknown", keys(bridge, `"defaultNetworks":["fast","absent"]`), 7, []string{`defaultNetworks`, `"absent"`}},
		{"confDir that is missing", `"clusterNetwork":"x","confDir":"/absent"`, 7, []string{"/absent", `"x"`}},
		{"confDir of the wrong type", keys(bridge, `"confDir":5`), 6, []string{`"multi"`, `"confDir"`}},
		{"binDir of the wrong type", keys(bridge, `"binDir":5`), 6, []string{`"multi"`, `"binDir"`}},

		{"readinessTimeout that is no time", keys(bridge, `"readinessTimeout":"soon"`), 6, []string{`"multi"`, `"readinessTimeout"`}},

		{"multusNamespace that is none", keys(bridge, `"multusNamespace":" kube-system"`), 7, []string{`"multi"`, "multusNamespace", `" kube-system" is not a DNS label`}},
		{"two names of multusNamespace", keys(bridge, `"multusNamespace":"a","networkNamespace":"b"`), 7, []string{`"multi"`, "networkNamespace", "multusNamespace"}},
		{"networkNamespace that is none", keys(bridge, `"networkNamespace":"a,b"`), 7, []string{`"multi"`, `key "networkNamespace": "a,b" is not a DNS label`}},
		{"globalNamespaces that are none", keys(bridge, `"globalNamespaces":"a,B"`), 7, []string{`invalid configuration: network "multi", key "globalNamespaces": "B" is not a DNS label`}},
		{"systemNamespaces that are none", keys(bridge, `"systemNamespaces":["kube-system"," x"]`), 7, []string{`"multi"`, `key "systemNamespaces[1]": " x" is not a DNS label`}},
		{"nadDir that is no path", keys(bridge, `"nadDir":"nads"`), 7, []string{`"multi"`, `key "nadDir": "nads" is not an absolute path`}},

		{"runtimeConfig of the wrong type", keys(bridge, `"runtimeConfig":"x"`), 6, []string{`"multi"`, `"runtimeConfig"`}},
		{"annotations of the wrong type", keys(bridge, `"runtimeConfig":{"io.kubernetes.cri.pod-annotations":["x"]}`), 6, []string{`"multi"`, "runtimeConfig.io.kubernetes.cri.pod-annotations", "not an object"}},
		{"annotation of the wrong type", keys(bridge, `"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"k8s.v1.cni.cncf.io/networks":5}}`), 6, []string{`"multi"`, "k8s.v1.cni.cncf.io/networks", "not a string"}},
		{"selected network that is unknown", keys(bridge, annotated("fast,absent")), 7, []string{`"absent"`, "net.d"}},
		{"selected network that is a path", keys(bridge, annotated(`[{"name":"/etc/x.conf"}]`)), 7, []string{"[0].name"}},
		{"cni-args that do not fit", keys(bridge, annotated(`[{"name":"odd","cni-args":{"a":1}}]`)), 7, []string{`"odd"`, "plugins[0].args"}},
		{"what no plugin of the network serves", keys(bridge, annotated(`[{"name":"other"},{"name":"storage","mac":"02:00:00:00:00:01"}]`, `"mac":"02:00:00:00:00:09"`)), 7, []string{`"storage"`, `"mac"`, "capabilities"}},
		{"template for a name", keys(bridge, annotated("fast@net%d")), 7, []string{`selected network "fast"`, `net%d`}},
		{"a name asked for twice", keys(bridge, annotated("fast@a,storage@a")), 7, []string{`"a"`, `"fast"`, `"storage"`}},
		{"the name of the first network", keys(bridge, annotated("fast@eth0")), 7, []string{`"eth0"`, `"fast"`}},
		{"a name that is taken in the namespace", keys(bridge, annotated("fast@used0")), 7, []string{`"used0"`, `"fast"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.0.0")
			h.taken = []string{"lo", "used0"}
			h.Write("net.d/odd.conf", `{"name":"odd","type":"bridge","args":5}`)
			h.refuses(t, tt.keys, tt.code, tt.says)
		})
	}
}

func TestCHECKAndDELUseTheRecordWhateverTheConfigurationSays(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, keys string }{
		{"no delegates", ``},
		{"plugins gone", `"delegates":[{"name":"x","plugins":[]}]`},
		{"another plugin", `"delegates":[{"type":"macvlan"}]`},
		{"network gone", `"clusterNetwork":"absent"`},
		{"readiness file gone", `"readinessindicatorfile":"/absent"`},
		{"a key twice", `"delegates":[{"type":"bridge","mtu":1,"mtu":2}]`},
		{"not UTF-8", "\"x\":\"\xff\""},
		{"selection broken", annotated(`[{"name":`)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.0.0")
			h.mustRun(t, "ADD", keys(`"delegates":[{"type":"bridge","mtu":1400}]`, annotated("storage")))
			added := h.stdin(t, 0)
			h.trace()
			h.Write("net.d/storage.conflist", `{"name":"storage","plugins":[]}`)
			h.mustRun(t, "CHECK", tt.keys)
			if got := h.stdin(t, 0); got["mtu"] != added["mtu"] || got["name"] != added["name"] {
				t.Errorf("CHECK with %v, added with %v", got, added)
			}
			wantTrace(t, h, "CHECK bridge eth0", "CHECK macvlan net1", "CHECK tuning net1")
			h.mustRun(t, "DEL", tt.keys)
			if got := h.stdin(t, 2); got["mtu"] != added["mtu"] || got["name"] != added["name"] {
				t.Errorf("DEL with %v, added with %v", got, added)
			}
			wantTrace(t, h, "DEL tuning net1", "DEL macvlan net1", "DEL bridge eth0")
			h.clean(t)
		})
	}
}

// Keys of Multus that change nothing for a pod are accepted: its configuration files
// have them.
func TestHarmlessKeysOfMultusAreAccepted(t *testing.T) {
	t.Parallel()
	for _, more := range []string{
		`"namespaceIsolation":false`, `"namespaceIsolation":null`, `"systemNamespaces":[]`, `"systemNamespaces":["kube-system"]`,
		`"auxiliaryCNIChainName":""`, annotatedWith("v1.multus-cni.io/default-network", `" "`),
		`"globalNamespaces":"default","multusNamespace":"kube-system","kubeconfig":"/etc/cni/net.d/multus.d/multus.kubeconfig","logLevel":"verbose","retryDeleteOnError":true`,
	} {
		h := newHost(t, "1.1.0")
		h.mustRun(t, "STATUS", keys(bridge, more))
		h.mustRun(t, "ADD", keys(bridge, more))
		h.mustRun(t, "DEL", keys(bridge, more))
		h.clean(t)
	}
}

// StateDir refuses what an ADD refuses, so that a daemon does not start with it.
func TestStateDirRefusesWhatAnAddDoes(t *testing.T) {
	t.Parallel()
	_, err := StateDir("", []byte(`{"name":"multi","namespaceIsolation":"yes"}`))
	nodetest.Fails(t, err, 6, "namespaceIsolation")
	if dir, err := StateDir("", []byte(`{"cniDir":"/state/"}`)); dir != "/state" || err != nil {
		t.Errorf("%q, %v", dir, err)
	}
}

// CHECK, GC and DEL need no key of the configuration except the ones that find the
// record: the others may have any type.
func TestKeysOfTheWrongTypeDoNotStopDEL(t *testing.T) {
	t.Parallel()
	for _, key := range Keys() {
		if key == "name" || key == "cniDir" {
			continue
		}
		for _, value := range []string{`5`, `[[5]]`, `{"a":{"b":5}}`} {
			h := newHost(t, "1.1.0")
			h.mustRun(t, "ADD", bridge)
			broken := `"` + key + `":` + value
			h.mustRun(t, "CHECK", broken)
			h.mustRun(t, "GC", keys(broken, `"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`))
			h.mustRun(t, "DEL", broken)
			h.clean(t)
		}
	}
}
