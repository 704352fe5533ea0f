//go:build linux

package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/metacni/metacni/netconf/nad"
)

// podOn returns a pod of a node, of the size that the pods of a cluster have: a Deployment
// made it, and an admission plugin gave it a token.
func podOn(node string, i int) *corev1.Pod {
	controller, blocks := true, true
	container := func(name string, port int32) corev1.Container {
		c := corev1.Container{
			Name: name, Image: "registry.example.com/team/" + name + "@sha256:4c51a8a1c6f5b7a36c0d9cbb0a8b8d6ff6b8c54f4a7ac9ac8f8e2a3ed0f19b7e",
			Args:  []string{"--config=/etc/" + name + "/config.yaml", "--log-level=info", "--listen=:8443"},
			Ports: []corev1.ContainerPort{{Name: name, ContainerPort: port}},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
				Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
			},
			VolumeMounts: []corev1.VolumeMount{
				{Name: "token", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true},
				{Name: "config", MountPath: "/etc/" + name},
			},
			ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Path: "/readyz", Port: intstr.FromInt32(port), Scheme: corev1.URISchemeHTTPS,
			}}},
		}
		for k := range 12 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("SERVICE_ENDPOINT_%d", k), Value: fmt.Sprintf("https://service-%d.team.svc:8443", k)})
		}
		return c
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:   fmt.Sprintf("%s-pod-%d-6d5f9c7b8d-x%04d", node, i, i),
			Labels: map[string]string{"app.kubernetes.io/name": "service", "app.kubernetes.io/instance": "team", "pod-template-hash": "6d5f9c7b8d"},
			Annotations: map[string]string{
				nad.NetworksAnnotation:       definition(0).String(),
				"prometheus.io/scrape":       "true",
				"checksum/config":            "0f7f0b0e9ac4b8a1c2e9a4f5c1a7a4f0a3d5b8e7c6f1e2d3c4b5a6978877665f",
				"kubectl.kubernetes.io/time": "2026-01-01T00:00:00Z",
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "service-6d5f9c7b8d", UID: "6b4b1f0e-7c0b-4b0a-9a0e-5d3c2b1a0f9e",
				Controller: &controller, BlockOwnerDeletion: &blocks,
			}},
		},
		Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{container("server", 8443), container("proxy", 9443)},
			Volumes: []corev1.Volume{
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: "service-config"},
				}}},
				{Name: "token", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			},
			Tolerations: []corev1.Toleration{
				{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
				{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
			},
		},
	}
}

// statusText returns the network-status of a pod with two networks.
func statusText(p nad.Pod, run int) string {
	one := func(name, ifname, ip, primary string) string {
		return fmt.Sprintf(`{"name":%q,"interface":%q,"ips":[%q],"mac":"02:00:0a:f4:00:05","default":%s,"dns":{},`+
			`"gateway":["10.244.0.1"]}`, name, ifname, ip, primary)
	}
	return "[" + one("cbr0", "eth0", fmt.Sprintf("10.244.%d.5", run), "true") + "," +
		one(definition(0).String(), "net1", fmt.Sprintf("10.1.%d.7", run), "false") + "]"
}
