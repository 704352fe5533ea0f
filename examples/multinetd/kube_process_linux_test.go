package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/delegate/kube/kubetest"
	"github.com/metacni/metacni/status"
)

// A daemon that is killed after it has recorded an attachment, and before it has written
// the status, leaves that to the next one.
func TestKilledDaemonLeavesTheStatusToTheNext(t *testing.T) {
	t.Parallel()
	api := kubetest.NewServer()
	t.Cleanup(api.Close)
	pod := api.SetPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "one"}, Spec: corev1.PodSpec{NodeName: "n1"}})
	kubeconfig, err := api.Kubeconfig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := startService(t, fmt.Sprintf(`,"kubeconfig":%q,"statusPolicy":"async","events":"off"`, kubeconfig))
	heal := api.Break(kubetest.Fault{Verb: "patch", Status: 500})
	s.args.Args = "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=one;K8S_POD_UID=" + string(pod.UID)
	s.args.StdinData = fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"multi","type":"multinet-shim","delegates":[{"type":"fake","dir":%q}],
		"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{}}}`, s.Dir)
	if err := s.client.Execute(t.Context(), "ADD", s.args); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = s.cmd.Wait() // killed
	heal()
	s.run(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := api.Wait(ctx, func() bool {
		return strings.Contains(api.Pod("ns", "one").Annotations[status.NetworkStatusAnnotation], `"name":"multi","interface":"eth0"`)
	}); err != nil {
		t.Error(err)
	}
}
