package kube

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/metacni/metacni/internal/e2e/kube/played"
	"github.com/metacni/metacni/internal/e2e/kube/server"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// multusConfig is the daemon-config.json of Multus's deployments/multus-daemonset-thick.yml.
const multusConfig = `{
    "chrootDir": "/hostroot",
    "cniVersion": "0.3.1",
    "logLevel": "verbose",
    "logToStderr": true,
    "cniConfigDir": "/host/etc/cni/net.d",
    "multusAutoconfigDir": "/host/etc/cni/net.d",
    "multusConfigFile": "auto",
    "socketDir": "/host/run/multus/"
}
`

// multusPod makes a pod of Multus's DaemonSet that runs multinetd with the shipped account:
// the configuration, mounts and environment are those of Multus.
func multusPod(n *node) *corev1.Pod {
	n.t.Helper()
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "of-" + n.name}, Data: map[string]string{"daemon-config.json": multusConfig}}
	if _, err := n.Core(n.t, n.Admin()).ConfigMaps("kube-system").Create(n.t.Context(), config, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
	pod := server.PodOn(n.name, "kube-system", "multus-"+n.name)
	pod.Spec.ServiceAccountName, pod.Spec.AutomountServiceAccountToken = "multinetd", new(true)
	pod.Spec.HostNetwork, pod.Spec.HostPID = true, true
	c := &pod.Spec.Containers[0]
	for name, path := range map[string][2]string{
		"cni": {"/etc/cni/net.d", "/host/etc/cni/net.d"}, "cnibin": {"/opt/cni/bin", "/opt/cni/bin"}, "host-run": {"/run", "/host/run"},
		"multus": {"/var/lib/cni/multus", "/var/lib/cni/multus"}, "netns": {"/run/netns", "/run/netns"}, "hostroot": {"/", "/hostroot"},
		"networks": {"/etc/cni/multus/net.d", "/etc/cni/multus/net.d"},
	} {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path[0]}}})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{
			Name: name, MountPath: path[1], MountPropagation: new(corev1.MountPropagationHostToContainer),
		})
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: config.Name},
	}}})
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "config", MountPath: "/etc/cni/net.d/multus.d"})
	c.Env = []corev1.EnvVar{{Name: "MULTUS_NODE_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}}
	c.Command, c.SecurityContext = []string{"/multinetd"}, &corev1.SecurityContext{Privileged: new(true)}
	pod.Spec.InitContainers = []corev1.Container{{
		Name: "install", SecurityContext: c.SecurityContext, Image: "none", Command: []string{"/multinetd", "--install-shim", "/host/opt/cni/bin"},
		VolumeMounts: []corev1.VolumeMount{{Name: "cnibin", MountPath: "/host/opt/cni/bin"}},
	}}
	return n.Pod(n.t, pod)
}

// published waits until the daemon has published its network, and has the runtime use it.
func (n *node) published() {
	n.t.Helper()
	file := n.file("root", n.networks, "00-multinet.conflist")
	eventually(n.t, func() bool { _, err := os.Stat(file); return err == nil })
	var list struct {
		CNIVersion, Name string
		Plugins          []object
	}
	if err := json.Unmarshal(n.read(file), &list); err != nil || len(list.Plugins) != 1 {
		n.t.Fatalf("%v: %s", err, n.read(file))
	}
	n.network = list.Plugins[0]
	n.network["cniVersion"], n.network["name"] = list.CNIVersion, list.Name
}

// platformPod makes a pod of the shipped DaemonSet with the component of a platform.
func platformPod(n *node, component string) *corev1.Pod {
	n.t.Helper()
	dir := n.t.TempDir()
	nodetest.OK(n.t, server.Kustomize(dir, component))
	for object := range strings.SplitSeq(n.Kubectl(n.t, "", "kustomize", dir), "\n---\n") {
		var set appsv1.DaemonSet
		if err := yaml.Unmarshal([]byte(object), &set); err == nil && set.Kind == "DaemonSet" {
			return n.PodOf(n.t, &set, n.name)
		}
	}
	n.t.Fatal("no DaemonSet")
	return nil
}

// A pod of the shipped DaemonSet works as it is, also with the components of platforms, and so does
// one of Multus's in which multinetd is in place of Multus's daemon. It installs the shim and publishes the network
// that the runtime then uses, gets its token from Kubernetes, and writes the status of pods.
func TestDaemonSetsWorkAsTheyAre(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		pod               func(n *node) *corev1.Pod
		networks, plugins string // directories
	}{
		"shipped": {pod: func(n *node) *corev1.Pod { return n.DaemonPod(n.t, n.name) }},
		"Multus":  {pod: multusPod},
		"k3s": {
			func(n *node) *corev1.Pod { return platformPod(n, "k3s") },
			"/var/lib/rancher/k3s/agent/etc/cni/net.d", "/var/lib/rancher/k3s/data/cni",
		},
		"MicroK8s": { // current is a symbolic link
			func(n *node) *corev1.Pod { return platformPod(n, "microk8s") },
			"/var/snap/microk8s/current/args/cni-network", "/var/snap/microk8s/current/opt/cni/bin",
		},
		"OpenShift": {func(n *node) *corev1.Pod { return platformPod(n, "openshift") }, "/etc/kubernetes/cni/net.d", "/var/lib/cni/bin"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, world(t).Server, nil)
			primary, err := json.Marshal(object{"cniVersion": "1.1.0", "name": "primary", "plugins": []object{n.bridge(0)}})
			nodetest.OK(t, err)
			n.networks, n.plugins = row.networks, row.plugins
			snap := n.file("root/var/snap/microk8s")
			nodetest.OK(t, errors.Join(os.MkdirAll(snap+"/8000", 0o755), os.Symlink("8000", snap+"/current")))
			n.rooted(primary)
			n.define(n.namespace, "blue", 1)
			pod := row.pod(n)
			n.runPod(pod)
			n.until("/readyz")
			for _, p := range []*corev1.Probe{pod.Spec.Containers[0].LivenessProbe, pod.Spec.Containers[0].ReadinessProbe} {
				if p != nil {
					n.probe(pod.Spec.Containers[0], p.Exec.Command)
				}
			}

			n.published()
			if name == "shipped" {
				eventually(t, func() bool {
					_, err := os.Stat(n.file("root/var/lib/cni/multinet.nad", n.namespace, "blue.conf"))
					return err == nil
				})
			}

			s := n.pod("one", "blue")
			n.ok("STATUS", s)
			n.ok("ADD", s)
			n.wantRight(s, "primary", n.namespace+"/blue")
			n.ok("CHECK", s)
			n.ok("DEL", s)
			n.wantNothing(s)
			nodetest.Equal(t, "requests", n.gate.made("PATCH"), []string{"PATCH " + statusPath(s.pod)})
			n.stop()
		})
	}
}

func slice(name, node, driver string) *resourcev1.ResourceSlice {
	return &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.ResourceSliceSpec{
		Driver: driver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1}, Devices: []resourcev1.Device{{Name: "a"}},
	}}
}

// allRights are more than the daemon ever gets: what is left is due to the policies alone, as it
// is on API servers before 1.36.
const allRights = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: all-claims}
rules:
- {apiGroups: [resource.k8s.io], resources: [resourceclaims/binding], verbs: [update]}
- {apiGroups: [resource.k8s.io], resources: [resourceclaims/driver], verbs: ["arbitrary-node:update"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: all-claims}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: all-claims}
subjects: [{kind: ServiceAccount, name: multinetd, namespace: kube-system}]
`

// The component gives the daemon's account what a driver needs and no more. Its policies leave
// the daemon the ResourceSlices of its driver and node, and the status of its devices in claims
// of its node.
func TestTheDaemonWritesForItsOwnDriverAndNode(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.Deploy(t)
	s.DeployWith(t, "dra")
	s.Node(t, daemonNode)
	s.Node(t, otherNode)
	pod := s.DaemonPod(t, daemonNode)
	token := s.Token(t, pod.Namespace, pod.Spec.ServiceAccountName, pod)
	namespace := s.Namespace(t)
	wantRights(t, s, namespace, token,
		"create patch events.k8s.io events",
		"list watch k8s.cni.cncf.io network-attachment-definitions",
		"patch  pods/status",
		"get resource.k8s.io resourceclaims",
		"update resource.k8s.io resourceclaims/status",
		"associated-node:update resource.k8s.io resourceclaims/driver "+claimDriver,
		"list watch create update delete resource.k8s.io resourceslices",
		"list watch  pods",
		"get  nodes",
	)

	s.Kubectl(t, allRights, "create", "-f", "-")
	daemon, admin := clientset(t, s, token), clientset(t, s, server.AdminToken)
	refused := func(err error) bool { return err != nil && strings.Contains(err.Error(), "multinetd may ") }

	all := daemon.ResourceV1().ResourceSlices()
	eventually(t, func() bool { // until the policy is enforced
		_, err := all.Create(t.Context(), slice("probe", otherNode, claimDriver), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return refused(err)
	})
	everywhere := slice("everywhere", daemonNode, claimDriver)
	everywhere.Spec.NodeName, everywhere.Spec.AllNodes = nil, new(true)
	for what, object := range map[string]*resourcev1.ResourceSlice{
		"of another node": slice("x", otherNode, claimDriver), "of another driver": slice("x", daemonNode, "gpu.example.com"), "of all nodes": everywhere,
	} {
		if _, err := all.Create(t.Context(), object, metav1.CreateOptions{}); !refused(err) {
			t.Errorf("%s: %v", what, err)
		}
		object.Name = "there"
		there, err := admin.ResourceV1().ResourceSlices().Create(t.Context(), object, metav1.CreateOptions{})
		nodetest.OK(t, err)
		there.Spec.Devices[0].Name = "b"
		if _, err := all.Update(t.Context(), there, metav1.UpdateOptions{}); !refused(err) {
			t.Errorf("%s, changed: %v", what, err)
		}
		if err := all.Delete(t.Context(), "there", metav1.DeleteOptions{}); !refused(err) {
			t.Errorf("%s, deleted: %v", what, err)
		}
		nodetest.OK(t, admin.ResourceV1().ResourceSlices().Delete(t.Context(), "there", metav1.DeleteOptions{}))
	}
	if _, err := all.Create(t.Context(), slice("own", daemonNode, claimDriver), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if err := all.Delete(t.Context(), "own", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}

	gpu := resourcev1.DeviceRequestAllocationResult{Request: "net", Driver: "gpu.example.com", Pool: "p", Device: "d"}
	web := s.Pod(t, server.PodOn(daemonNode, namespace, "web"))
	scheduler := played.Scheduler{Client: admin, Driver: claimDriver}
	claimOf := func(name, node string) *resourcev1.ResourceClaim {
		t.Helper()
		parameters := cniConfig("CNI", "cni.networking.x-k8s.io", `{"cniVersion":"1.1.0","name":"n","type":"bridge","b":1.0,"a":1e3}`)
		c, err := scheduler.Create(t.Context(), scheduler.Claim(namespace, name, "any", []string{"net"}, parameters))
		nodetest.OK(t, err)
		own := resourcev1.DeviceRequestAllocationResult{Request: "net", Driver: claimDriver, Pool: node, Device: name}
		if c, err = scheduler.Reserve(t.Context(), c, node, []resourcev1.DeviceRequestAllocationResult{own, gpu}, web); err != nil {
			t.Fatal(err)
		}
		c.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: claimDriver, Pool: node, Device: name}}
		return c
	}
	probe := claimOf("probe", otherNode)
	eventually(t, func() bool { // until the policy is enforced, and the rights are those of the test
		return refused(update(t, daemon, probe, metav1.DryRunAll))
	})
	for what, row := range map[string]struct {
		node  string
		edit  func(c *resourcev1.ResourceClaim)
		allow bool
	}{
		"its device":               {daemonNode, func(*resourcev1.ResourceClaim) {}, true},
		"a device of another node": {otherNode, func(*resourcev1.ResourceClaim) {}, false},
		"the nodes of a claim": {daemonNode, func(c *resourcev1.ResourceClaim) {
			c.Status.Allocation = nil
			c.Status.Devices = nil
			c.Status.ReservedFor = nil
		}, false},
		"the pod of a claim": {daemonNode, func(c *resourcev1.ResourceClaim) { c.Status.ReservedFor = nil }, false},
		"another pod": {daemonNode, func(c *resourcev1.ResourceClaim) {
			c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: "x", UID: "x"})
		}, false},
		"a device of another driver": {daemonNode, func(c *resourcev1.ResourceClaim) {
			c.Status.Devices = append(c.Status.Devices, resourcev1.AllocatedDeviceStatus{Driver: gpu.Driver, Pool: gpu.Pool, Device: gpu.Device})
		}, false},
	} {
		c := claimOf(strings.ReplaceAll(what, " ", "-"), row.node)
		row.edit(c)
		err := update(t, daemon, c)
		if row.allow && err != nil || !row.allow && !refused(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// clientset returns a client of a token's account.
func clientset(t *testing.T, s *server.Server, token string) kubernetes.Interface {
	t.Helper()
	client, err := played.Client(s.As(token))
	nodetest.OK(t, err)
	return client
}

func update(t *testing.T, client kubernetes.Interface, c *resourcev1.ResourceClaim, dryRun ...string) error {
	t.Helper()
	_, err := client.ResourceV1().ResourceClaims(c.Namespace).UpdateStatus(t.Context(), c, metav1.UpdateOptions{DryRun: dryRun})
	return err
}

// Every example can be applied: the API server takes it, the classes, claims and pods belong
// together and to the driver of the example's configuration. Package dra shows that the driver can
// read their parameters.
func TestExamplesOfClaims(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.Deploy(t)
	namespace := s.Namespace(t)
	files := glob(t, server.Manifests("dra/examples/*.yaml"))
	if len(files) < 4 {
		t.Fatal(files)
	}
	for _, file := range files {
		s.Kubectl(t, "", "apply", "-n", namespace, "-f", file)
	}
	var config struct{ DRA struct{ Driver string } }
	text, err := os.ReadFile(server.Manifests("dra/examples/daemon-config.json"))
	if err == nil {
		err = json.Unmarshal(text, &config)
	}
	if err != nil || config.DRA.Driver != claimDriver {
		t.Errorf("the daemon is configured as driver %q: %v", config.DRA.Driver, err)
	}
	admin := clientset(t, s, server.AdminToken)
	classes, err := admin.ResourceV1().DeviceClasses().List(t.Context(), metav1.ListOptions{})
	nodetest.OK(t, err)
	known := map[string]bool{}
	for _, c := range classes.Items {
		known[c.Name] = true
		for _, config := range c.Spec.Config {
			nodetest.Equal(t, "driver of class "+c.Name, config.Opaque.Driver, claimDriver)
		}
	}
	templates, err := admin.ResourceV1().ResourceClaimTemplates(namespace).List(t.Context(), metav1.ListOptions{})
	nodetest.OK(t, err)
	for _, c := range templates.Items {
		devices := c.Spec.Spec.Devices
		if len(devices.Config) != 1 || devices.Config[0].Opaque.Driver != claimDriver || len(devices.Requests) != 1 || !known[devices.Requests[0].Exactly.DeviceClassName] {
			t.Errorf("%s: %+v", c.Name, devices)
		}
		pod, err := s.Core(t, s.Admin()).Pods(namespace).Get(t.Context(), c.Name, metav1.GetOptions{})
		if err != nil || !slices.ContainsFunc(pod.Spec.ResourceClaims, func(r corev1.PodResourceClaim) bool { return *r.ResourceClaimTemplateName == c.Name }) {
			t.Errorf("no pod uses %s: %v", c.Name, err)
		}
	}
}

// The server has every object as the manifests say: applying them again changes nothing.
func TestManifestsAreAccepted(t *testing.T) {
	t.Parallel()
	w := world(t)
	got := w.Kubectl(t, "", "apply", "-k", server.Manifests()) + w.Kubectl(t, "", "apply", "-f", server.Manifests("crd.yaml"))
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
			deploy, err := filepath.Rel(dir, server.Manifests()) // Kustomize refuses absolute paths
			nodetest.OK(t, err)
			fill := strings.NewReplacer("DEPLOY", deploy, "NAMESPACE", namespace)
			nodetest.OK(t, os.WriteFile(dir+"/kustomization.yaml", []byte(fill.Replace(tt.kustomization)), 0o600))
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
