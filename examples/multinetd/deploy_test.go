package main

import (
	"os"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
)

func deployed(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	nodetest.OK(t, err)
	return string(text)
}

// configured is the configuration in a file of the manifests, on a node with this root. It has no
// key without effect, and the node has a copy of all definitions: one that restarts while the API
// is away then starts pods with networks.
func configured(t *testing.T, file string) (c *config, root string) {
	t.Helper()
	root = node(t)
	c, err := configOf(t, strings.ReplaceAll(deployed(t, file), `"/host"`, `"`+root+`"`))
	nodetest.OK(t, err)
	if want := root + "/var/lib/cni/multinet.nad"; len(c.ignored) > 0 || c.ChrootDir != root || c.cluster.NADDir != want || c.checkNADDir() != nil {
		t.Errorf("%+v: definitions are copied to %q, want %q: %v", c, c.cluster.NADDir, want, c.checkNADDir())
	}
	return c, root
}

// The daemon accepts the configuration of its DaemonSet, and the probes use the address of its
// metrics.
func TestDaemonSetConfiguresTheDaemon(t *testing.T) {
	t.Parallel()
	c, root := configured(t, "deploy/daemon/daemon-config.json")
	if c.publish.Dir != root+"/etc/cni/net.d" {
		t.Errorf("published in %s", c.publish.Dir)
	}
	host, port, _ := strings.Cut(c.MetricsAddress, ":")
	if n := strings.Count(deployed(t, "deploy/daemon/daemonset.yaml"), "{host: "+host+", port: "+port+","); n != 2 {
		t.Errorf("%d probes ask at %s, want 2", n, c.MetricsAddress)
	}
}

// The daemon accepts the example of ResourceClaims, and the component gives it the right to watch
// the pods of its node.
func TestExampleOfClaimsIsAConfiguration(t *testing.T) {
	t.Parallel()
	c, _ := configured(t, "deploy/dra/examples/daemon-config.json")
	if d := c.cluster.DRA; d == nil || d.Driver == "" || len(d.Networks) == 0 {
		t.Errorf("%+v", c)
	}
	if !strings.Contains(deployed(t, "deploy/dra/kustomization.yaml"), "resources: [pods], verbs: [list, watch]") {
		t.Error("the daemon may not watch pods")
	}
}

// A pod has a token only where the daemon uses the API; the webhook never does. The init container mounts only
// the directory of plugins.
func TestDeploymentGivesNoMoreThanIsNeeded(t *testing.T) {
	t.Parallel()
	const daemonSet = "deploy/daemon/daemonset.yaml"
	for _, name := range []string{daemonSet, "deploy/webhook/deployment.yaml", "../multinet/daemonset.yaml"} {
		if !strings.Contains(deployed(t, name), "\n      automountServiceAccountToken: false") {
			t.Errorf("%s: the pod has a token", name)
		}
	}
	_, install, _ := strings.Cut(deployed(t, daemonSet), "initContainers:")
	install, _, _ = strings.Cut(install, "\n      containers:")
	if strings.Count(install, "mountPath:") != 1 || !strings.Contains(install, "{name: plugins, mountPath: /opt/cni/bin}") {
		t.Errorf("the init container mounts more than plugins:\n%s", install)
	}
}

// systemd restarts the daemon after any number of failures.
func TestServiceIsAlwaysStartedAgain(t *testing.T) {
	t.Parallel()
	unit, service, _ := strings.Cut(deployed(t, "multinetd.service"), "[Service]")
	if !strings.Contains(unit, "\nStartLimitIntervalSec=0\n") || !strings.Contains(service, "\nRestart=always\n") {
		t.Errorf("%s", unit)
	}
}
