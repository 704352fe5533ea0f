package kube

import (
	"encoding/json"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/internal/e2e/kube/server"
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
	c := &pod.Spec.Containers[0]
	for name, path := range map[string][2]string{
		"cni": {"/etc/cni/net.d", "/host/etc/cni/net.d"}, "cnibin": {"/opt/cni/bin", "/opt/cni/bin"}, "host-run": {"/run", "/host/run"},
		"multus": {"/var/lib/cni/multus", "/var/lib/cni/multus"}, "netns": {"/run/netns", "/run/netns"}, "hostroot": {"/", "/hostroot"},
		"networks": {"/etc/cni/multus/net.d", "/etc/cni/multus/net.d"},
	} {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path[0]}}})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path[1]})
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: config.Name},
	}}})
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "config", MountPath: "/etc/cni/net.d/multus.d"})
	c.Env = []corev1.EnvVar{{Name: "MULTUS_NODE_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}}
	c.Command = []string{"/multinetd"}
	pod.Spec.InitContainers = []corev1.Container{{
		Name: "install", Image: "none", Command: []string{"/multinetd", "--install-shim", "/host/opt/cni/bin"},
		VolumeMounts: []corev1.VolumeMount{{Name: "cnibin", MountPath: "/host/opt/cni/bin"}},
	}}
	return n.Pod(n.t, pod)
}

// published waits until the daemon has published its network, and has the runtime use it.
func (n *node) published() {
	n.t.Helper()
	file := n.file("root/etc/cni/net.d/00-multinet.conflist")
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

// A pod of the shipped DaemonSet works as it is, and so does one of Multus's in which
// multinetd is in place of Multus's daemon. It installs the shim and publishes the network
// that the runtime then uses, gets its token from Kubernetes, and writes the status of pods.
func TestDaemonSetsWorkAsTheyAre(t *testing.T) {
	t.Parallel()
	for name, daemonPod := range map[string]func(n *node) *corev1.Pod{
		"shipped": func(n *node) *corev1.Pod { return n.DaemonPod(n.t, n.name) },
		"Multus":  multusPod,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, world(t).Server, nil)
			primary, err := json.Marshal(object{"cniVersion": "1.1.0", "name": "primary", "plugins": []object{n.bridge(0)}})
			if err != nil {
				t.Fatal(err)
			}
			n.rooted(primary)
			n.define(n.namespace, "blue", 1)
			pod := daemonPod(n)
			n.runPod(pod)
			n.until("/readyz")
			for _, p := range []*corev1.Probe{pod.Spec.Containers[0].LivenessProbe, pod.Spec.Containers[0].ReadinessProbe} {
				if p != nil {
					n.probe(p.HTTPGet)
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
			same(t, "requests", []string{"PATCH " + statusPath(s.pod)}, n.gate.made("PATCH"))
			n.stop()
		})
	}
}
