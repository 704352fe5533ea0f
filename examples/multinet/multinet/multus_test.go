package multinet

import (
	"slices"
	"testing"
)

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
	wantError(t, err, 6, "namespaceIsolation")
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
