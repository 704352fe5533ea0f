//go:build !race

package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	kubetest "github.com/metacni/metacni/internal/test/kube"
)

// A daemon that knows 110 pods and 1000 definitions needs at most 15 MiB of memory for data at rest.
func TestMemoryInALargeCluster(t *testing.T) {
	t.Parallel()
	api := kubetest.NewServer(scheme.Codecs.UniversalDeserializer().Decode)
	t.Cleanup(api.Close)
	for i := range 1000 {
		kubetest.Put(api, kubetest.Definition{
			Namespace: fmt.Sprintf("ns%d", i%50), Name: fmt.Sprintf("net%d", i),
			Config: fmt.Sprintf(`{"cniVersion":"1.0.0","plugins":[{"type":"macvlan","master":"eth%d","ipam":{"type":"host-local","ranges":[[{"subnet":"10.%d.%d.0/24"}]]}}]}`, i%8, i/250, i%250),
		})
	}
	for i := range 110 {
		kubetest.Put(api, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("pod%d", i), Annotations: map[string]string{"filler": strings.Repeat("x", 8<<10)}},
			Spec:       corev1.PodSpec{NodeName: "n1"},
		})
	}
	kubeconfig, err := api.Kubeconfig(t.TempDir())
	nodetest.OK(t, err)
	s := startService(t, fmt.Sprintf(`,"kubeconfig":%q,"nodeName":"n1","annotations":"api"`, kubeconfig))
	w := &world{client: s.client, logged: &nodetest.Log{}}
	w.until(t, "pods and definitions are known", func() bool {
		all := w.scrape(t)
		return all[`multinetd_view_objects{resource="pods"}`] == 110 && all[`multinetd_view_objects{resource="network-attachment-definitions"}`] == 1000
	})
	// The memory of the start is given back 10 seconds after the daemon is ready.
	w.until(t, "there are at most 15 MiB of data", func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
		nodetest.OK(t, err)
		_, anonymous, _ := strings.Cut(string(status), "RssAnon:")
		kb := 0
		_, err = fmt.Sscan(anonymous, &kb)
		nodetest.OK(t, err)
		return kb <= 15<<10
	})
}
