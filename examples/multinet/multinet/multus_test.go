package multinet

import (
	"slices"
	"testing"
)

// annotatedWith is the runtimeConfig of a pod with one annotation.
func annotatedWith(annotation, value string) string {
	return `"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"` + annotation + `":` + value + `}}`
}

// Features of Multus that multinet does not have are refused by name if a pod would
// get other networks without them. CHECK, DEL and GC work.
func TestMissingFeaturesOfMultusAreRefused(t *testing.T) {
	t.Parallel()
	const two = `"delegates":[{"type":"bridge"},{"type":"tuning"}]`
	for _, tt := range []struct{ name, keys, says string }{
		{"isolation", keys(bridge, `"namespaceIsolation":true`), "namespaceIsolation"},
		{"isolation in other letters", keys(bridge, `"NAMESPACEisolation":true`), "namespaceIsolation"},
		{"isolation of another type", keys(bridge, `"namespaceIsolation":"true"`), "namespaceIsolation"},
		{"isolation as a number", keys(bridge, `"namespaceIsolation":1`), "namespaceIsolation"},
		{"namespaces without default networks", keys(bridge, `"defaultNetworks":["fast"],"systemNamespaces":["kube-system"]`), "systemNamespaces"},
		{"namespaces without other delegates", keys(two, `"systemNamespaces":["kube-system"]`), "systemNamespaces"},
		{"auxiliary chain", keys(bridge, `"auxiliaryCNIChainName":"vendor-cni-chain"`), "auxiliaryCNIChainName"},
		{"the pod's own default network", keys(bridge, annotatedWith("v1.multus-cni.io/default-network", `"fast"`)), "v1.multus-cni.io/default-network"},
		{"the pod's own default network, escaped", keys(bridge, annotatedWith(`v1.multus-cni.io\/default\u002dnetwork`, `"[{}]"`)), "v1.multus-cni.io/default-network"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			for _, command := range []string{"ADD", "STATUS"} {
				wantError(t, h.run(t, command, tt.keys), 7, `"multi"`, tt.says)
			}
			wantTrace(t, h)
			h.clean(t)
			h.mustRun(t, "ADD", bridge)
			h.mustRun(t, "CHECK", tt.keys)
			h.mustRun(t, "GC", keys(tt.keys, gcFor("c1 eth0")))
			h.mustRun(t, "DEL", tt.keys)
			h.clean(t)
			h.mustRun(t, "ADD", bridge)
			h.mustRun(t, "GC", keys(tt.keys, gcFor()))
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
	_, err := StateDir("", []byte(`{"name":"multi","namespaceIsolation":true}`))
	wantError(t, err, 7, "namespaceIsolation")
	if dir, err := StateDir("", []byte(`{"cniDir":"/state/"}`)); dir != "/state" || err != nil {
		t.Errorf("%q, %v", dir, err)
	}
}

// Keys returns all keys that are read, and no others.
func TestKeys(t *testing.T) {
	t.Parallel()
	known := Keys()
	for _, key := range []string{"name", "type", "cniDir", "delegates", "clusterNetwork", "parallel", "readinessTimeout", "namespaceIsolation"} {
		if !slices.Contains(known, key) {
			t.Errorf("%s is unknown", key)
		}
	}
	for _, key := range []string{"", "-", "root", "kubeconfig", "cnidir"} {
		if slices.Contains(known, key) {
			t.Errorf("%s is known", key)
		}
	}
}
