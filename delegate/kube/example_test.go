package kube_test

import (
	"context"
	"fmt"
	"os"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/delegate/kube/kubetest"
	"github.com/metacni/metacni/netconf/nad"
)

// A daemon that asks a cluster for the definition of a network.
func Example() {
	server := kubetest.NewServer() // in place of a cluster
	defer server.Close()
	server.SetDefinition(kubetest.Definition{Namespace: "default", Name: "storage", Config: `{"type":"macvlan"}`})
	dir, err := os.MkdirTemp("", "kube")
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

	view, err := kube.Open(context.Background(), kube.Config{Kubeconfig: kubeconfig})
	if err != nil {
		fmt.Println(err) // a configuration that can never work
		return
	}
	defer view.Close()

	definition, err := view.Definition(context.Background(), nad.Ref{Namespace: "default", Name: "storage"})
	if err != nil {
		fmt.Println(err) // status.Code(err) is 7 if there is none, and 11 if that cannot be known
		return
	}
	network, err := definition.Network(nad.Rules{CNIVersion: "1.1.0"})
	fmt.Println(network.Name(), network.Plugins()[0].Type(), err)
	// Output: storage macvlan <nil>
}
