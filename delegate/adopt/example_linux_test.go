package adopt_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/scratch"
)

// A runtime has attached a container to its own network. Then a meta-plugin is
// installed in front of that: it takes the container over, and its DEL removes
// what the runtime has made.
func Example() {
	dir, err := os.MkdirTemp("", "adopt")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	exec := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{
		"bridge": delegatetest.Result(&types100.Result{CNIVersion: "1.0.0"}),
	}}

	// The runtime, as it was.
	cache := filepath.Join(dir, "cache")
	list, err := libcni.NetworkConfFromBytes([]byte(`{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge"}]}`))
	if err != nil {
		panic(err)
	}
	_, err = libcni.NewCNIConfigWithCacheDir([]string{"/opt/cni/bin"}, cache, exec).AddNetworkList(ctx, list,
		&libcni.RuntimeConf{ContainerID: "c1", NetNS: "/no-such-directory/c1", IfName: "eth0"})
	if err != nil {
		panic(err)
	}

	// The meta-plugin, with a network called "multi" in front of "pods".
	life := &lifecycle.Manager{Dir: filepath.Join(dir, "state"), Invoker: &delegate.Invoker{Exec: exec}}
	node := adopt.Node{Network: "multi", Primary: []string{"pods"}, Own: []string{"meta"}, CacheDir: cache}
	for range 2 {
		for a, err := range node.Attachments() {
			adopted := false
			if err == nil {
				adopted, err = life.Adopt(ctx, a)
			}
			fmt.Println(a.Key, adopted, err)
		}
	}
	err = life.Del(ctx, scratch.Key{Network: "multi", ContainerID: "c1", IfName: "eth0"}, lifecycle.DelRequest{})
	fmt.Println("deleted:", err)
	for _, call := range exec.Trace() {
		fmt.Println(call)
	}
	fmt.Println("left:", exec.Live())

	// Output:
	// multi/c1/eth0 true <nil>
	// multi/c1/eth0 false <nil>
	// deleted: <nil>
	// ADD bridge eth0
	// DEL bridge eth0
	// left: []
}
