package dra_test

import (
	"context"
	"fmt"
	"os"

	"k8s.io/client-go/kubernetes/scheme"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/delegate/kube/dra"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// A daemon runs a driver beside its View. In the ADD of a pod it asks for the networks of the
// pod's claims.
func Example() {
	server := kubetest.NewServer(scheme.Codecs.UniversalDeserializer().Decode) // in place of the API server of a cluster
	defer server.Close()
	dir, err := os.MkdirTemp("", "dra")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	kubeconfig, err := server.Kubeconfig(dir)
	if err != nil {
		fmt.Println(err)
		return
	}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	view, err := kube.Open(ctx, kube.Config{Kubeconfig: kubeconfig})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer view.Close()
	driver, err := dra.Start(ctx, dra.Config{
		Name: "net.example.com", Node: "node1", View: view,
		Dir:    dir + "/claims",
		Policy: nad.Policy{Isolation: true}, Rules: nad.Rules{Own: []string{"meta"}},
		// What the records of the plugin say:
		Records:  func(context.Context, string) ([]dra.Detachable, error) { return nil, nil },
		Networks: []dra.Offer{{Network: "storage"}},
		Network: func(context.Context, string) (netconf.Network, error) {
			return netconf.Parse([]byte(`{"cniVersion":"1.1.0","name":"storage","type":"bridge"}`))
		},
		KubeletDir: dir,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer driver.Stop()

	// In the ADD of a pod, whose UID is in CNI_ARGS:
	const podUID = "0d3f8a2e-1111-4222-8333-444455556666"
	claims, err := driver.Claims(ctx, nad.Pod{UID: podUID})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, claim := range claims {
		for _, network := range claim.Networks {
			fmt.Println(network.IfName, network.Definition, network.Config)
		}
	}
	// … attach them together with all other networks of the pod, and then:
	if err := driver.UpdateMetadata(ctx, podUID); err != nil {
		fmt.Println(err)
	}
	driver.Attached(podUID, nil)
	fmt.Println(len(claims), "claims")
	// Output: 0 claims
}
