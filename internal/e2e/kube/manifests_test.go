package kube

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/internal/e2e/kube/server"
)

// The server has every object as the manifests say: applying them again changes nothing.
func TestManifestsAreAccepted(t *testing.T) {
	t.Parallel()
	w := world(t)
	got := w.Kubectl(t, "", "apply", "-k", server.Manifests) + w.Kubectl(t, "", "apply", "-f", server.Manifests+"/crd.yaml")
	var objects []string
	for line := range strings.Lines(got) {
		object, unchanged := strings.CutSuffix(line, " unchanged\n")
		if name, _, hashed := strings.Cut(object, "configmap/multinetd-"); hashed {
			object = name + "configmap/multinetd-HASH"
		}
		if objects = append(objects, object); !unchanged {
			t.Errorf("applied again: %s", line)
		}
	}
	slices.Sort(objects)
	want := []string{
		"clusterrole.rbac.authorization.k8s.io/multinetd",
		"clusterrolebinding.rbac.authorization.k8s.io/multinetd",
		"configmap/multinetd-HASH",
		"customresourcedefinition.apiextensions.k8s.io/network-attachment-definitions.k8s.cni.cncf.io",
		"daemonset.apps/multinetd",
		"serviceaccount/multinetd",
		"validatingadmissionpolicy.admissionregistration.k8s.io/multinetd",
		"validatingadmissionpolicybinding.admissionregistration.k8s.io/multinetd",
	}
	if diff := cmp.Diff(want, objects); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

// A cluster can use the manifests in another namespace, with components, or without the
// API.
func TestVariantsOfTheManifests(t *testing.T) {
	t.Parallel()
	w := world(t)
	namespace := w.Namespace(t)
	tests := map[string]struct {
		kustomization string
		has, lacks    []string
	}{
		"another namespace": {
			"resources: [DEPLOY]\nnamespace: NAMESPACE",
			[]string{
				"kind: ServiceAccount\nmetadata:\n  name: multinetd\n  namespace: NAMESPACE\n",
				"- kind: ServiceAccount\n  name: multinetd\n  namespace: NAMESPACE\n",
			},
			[]string{"namespace: kube-system", "\n  - pods\n"},
		},
		"pods of the node": {
			"resources: [DEPLOY]\ncomponents: [DEPLOY/pods]",
			[]string{"  - pods\n  verbs:\n  - list\n  - watch\n", "  - pods/status\n  verbs:\n  - patch\n"},
			nil,
		},
		"devices": {
			"resources: [DEPLOY]\ncomponents: [DEPLOY/devices]",
			[]string{
				"mountPath: /host\n", "mountPath: /etc/multinetd\n", "  - resourceslices\n  verbs:\n  - list\n  - watch\n",
			},
			nil,
		},
		"resource claims": {
			"resources: [DEPLOY]\ncomponents: [DEPLOY/dra, DEPLOY/devices]\nnamespace: NAMESPACE",
			[]string{
				"mountPath: /host/var/lib/kubelet/plugins\n", "mountPath: /host/var/lib/kubelet/plugins_registry\n",
				"    path: /var/lib/kubelet/plugins\n", "    path: /var/lib/kubelet/plugins_registry\n", "mountPath: /host\n",
				"  - resourceclaims/driver\n  verbs:\n  - associated-node:update\n",
			},
			[]string{"namespace: kube-system"},
		},
		"startup taint": {
			"resources: [DEPLOY]\ncomponents: [DEPLOY/taint, DEPLOY/pods]\nnamespace: NAMESPACE",
			[]string{"  - nodes\n  verbs:\n  - get\n  - patch\n", "- --startup-taint=multinetd.metacni.io/not-ready\n", "name: multinetd-taint\n"},
			nil,
		},
		"webhook": {
			"resources: [DEPLOY]\ncomponents: [DEPLOY/webhook]\nnamespace: NAMESPACE\nimages: [{name: multinetd, newName: example.com/multinetd}]",
			[]string{
				"    service:\n      name: multinetd-webhook\n      namespace: NAMESPACE\n      path: /validate\n",
				"failurePolicy: Ignore\n", "kind: Deployment\n", "kind: Service\n", "kind: PodDisruptionBudget\n", "automountServiceAccountToken: false\n",
			},
			[]string{"failurePolicy: Fail\n  matchPolicy", "namespace: kube-system", "image: multinetd"},
		},
		"k3s": {
			"resources: [DEPLOY]\ncomponents: [DEPLOY/taint, DEPLOY/dra, DEPLOY/k3s]",
			[]string{"- --cni-config-dir=/var/lib/rancher/k3s/agent/etc/cni/net.d\n", "    path: /var/lib/rancher/k3s/data/cni\n", "mountPath: /opt/cni/bin\n", "- --startup-taint=", "name: kubelet-plugins\n"},
			[]string{"path: /opt/cni/bin\n"},
		},
		"MicroK8s": {
			"resources: [DEPLOY/daemon]\ncomponents: [DEPLOY/microk8s]",
			[]string{"- --cni-config-dir=/var/snap/microk8s/current/args/cni-network\n", "    path: /var/snap/microk8s/current/opt/cni/bin\n"},
			[]string{"path: /opt/cni/bin\n"},
		},
		"OpenShift": {
			"resources: [DEPLOY]\ncomponents: [DEPLOY/openshift]\nnamespace: NAMESPACE",
			[]string{"- --cni-config-dir=/etc/kubernetes/cni/net.d\n", "    path: /var/lib/cni/bin\n", "  name: system:openshift:scc:privileged\nsubjects:\n- kind: ServiceAccount\n  name: multinetd\n  namespace: NAMESPACE\n"},
			[]string{"path: /opt/cni/bin\n", "namespace: kube-system"},
		},
		"priority": {
			"resources: [DEPLOY]\ncomponents: [DEPLOY/priority]\nnamespace: NAMESPACE",
			[]string{"kind: PriorityLevelConfiguration\n", "      serviceAccount:\n        name: multinetd\n        namespace: NAMESPACE\n"},
			nil,
		},
		"without the API": {
			"resources: [DEPLOY/daemon]",
			[]string{"automountServiceAccountToken: false\n", "priorityClassName: system-node-critical\n"},
			[]string{"ServiceAccount\n", "serviceAccount", "kind: ClusterRole", "NODE_NAME"},
		},
		"another configuration": {
			"resources: [DEPLOY]\nconfigMapGenerator: [{name: multinetd, namespace: kube-system, behavior: merge, literals: ['daemon-config.json={}']}]",
			[]string{"\n  daemon-config.json: '{}'\n"},
			[]string{"chrootDir"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			deploy, err := filepath.Abs(server.Manifests)
			if err == nil {
				deploy, err = filepath.Rel(dir, deploy) // Kustomize refuses absolute paths
			}
			if err != nil {
				t.Fatal(err)
			}
			fill := strings.NewReplacer("DEPLOY", deploy, "NAMESPACE", namespace)
			if err := os.WriteFile(dir+"/kustomization.yaml", []byte(fill.Replace(tt.kustomization)), 0o600); err != nil {
				t.Fatal(err)
			}
			text := w.Kubectl(t, "", "kustomize", dir)
			for _, want := range tt.has {
				if !strings.Contains(text, fill.Replace(want)) {
					t.Errorf("no %q in\n%s", fill.Replace(want), text)
				}
			}
			for _, unwanted := range tt.lacks {
				if strings.Contains(text, unwanted) {
					t.Errorf("%q in\n%s", unwanted, text)
				}
			}
			w.Kubectl(t, text, "apply", "--dry-run=server", "-f", "-")
		})
	}
}

// The daemon's pod gets the priority that keeps it on a full node, and its memory is not
// limited: pods cannot start without it.
func TestDaemonsPodIsCritical(t *testing.T) {
	t.Parallel()
	w := world(t)
	if got := *w.Daemon.Spec.Priority; got != 2000001000 {
		t.Errorf("priority %d", got)
	}
	for _, c := range append(w.Daemon.Spec.InitContainers, w.Daemon.Spec.Containers...) {
		if len(c.Resources.Limits) > 0 {
			t.Errorf("%s has the limits %v", c.Name, c.Resources.Limits)
		}
	}
}
