package lifecycle_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// The life of an attachment to two networks, with plugins that live in memory.
func Example() {
	dir, err := os.MkdirTemp("", "lifecycle")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	pods, err := netconf.Parse([]byte(`{"cniVersion":"1.1.0","name":"pods","type":"bridge"}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	storage, err := netconf.Parse([]byte(`{"cniVersion":"1.1.0","name":"storage","type":"sriov"}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	works := delegatetest.Result(nil)
	exec := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"bridge": works, "sriov": works}}
	m := &lifecycle.Manager{Invoker: &delegate.Invoker{Exec: exec}, Dir: dir}

	// As the runtime knows it: our network, the container, CNI_IFNAME.
	ctx, k := context.Background(), scratch.Key{Network: "multi", ContainerID: "c1", IfName: "eth0"}
	both := lifecycle.Transaction{Plan: lifecycle.Plan(
		delegate.Attachment{Network: pods, ContainerID: "c1", IfName: "eth0"},
		delegate.Attachment{Network: storage, ContainerID: "c1", IfName: "net1"},
	)}

	// An ADD that fails leaves nothing.
	exec.Plugins["sriov"] = delegatetest.FailOn("ADD", 11, "no free device", works)
	_, err = m.Add(ctx, k, both)
	fmt.Println(err)
	fmt.Println("alive:", exec.Live())

	// One that succeeds is not done twice.
	exec.Plugins["sriov"] = works
	if _, err := m.Add(ctx, k, both); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("alive:", exec.Live())
	_, err = m.Add(ctx, k, both)
	fmt.Println(err)
	fmt.Println("check:", m.Check(ctx, k, ""))

	// A DEL that fails is tried again: nothing is forgotten.
	exec.Plugins["sriov"] = delegatetest.FailOn("DEL", 11, "device is busy", works)
	fmt.Println(m.Del(ctx, k, lifecycle.DelRequest{}))
	fmt.Println("alive:", exec.Live())
	exec.Plugins["sriov"] = works
	fmt.Println("collected:", m.GC(ctx, lifecycle.GCRequest{Network: "multi", Valid: []types.GCAttachment{}}))
	fmt.Println("alive:", exec.Live())
	// Output:
	// ADD c1 eth0: network "storage" (net1): plugin "sriov": no free device
	// alive: []
	// alive: [bridge c1 eth0 sriov c1 net1]
	// ADD c1 eth0: already added, DEL must come first
	// check: <nil>
	// DEL c1 eth0: network "storage" (net1): plugin "sriov": device is busy
	// alive: [sriov c1 net1]
	// collected: <nil>
	// alive: []
}

// A list says which networks a running container should have. The origin of each
// attachment is its entry in the list.
func ExampleManager_Reconcile() {
	dir, err := os.MkdirTemp("", "lifecycle")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	attachment := func(name, ifname string) (delegate.Attachment, error) {
		n, err := netconf.Parse(fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":%q,"type":"bridge"}`, name))
		return delegate.Attachment{Network: n, ContainerID: "c1", IfName: ifname}, err
	}
	exec := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"bridge": delegatetest.Result(nil)}}
	m := &lifecycle.Manager{Invoker: &delegate.Invoker{Exec: exec}, Dir: dir}
	ctx, k := context.Background(), scratch.Key{Network: "multi", ContainerID: "c1", IfName: "eth0"}
	pods, err := attachment("pods", "eth0")
	if err == nil {
		_, err = m.Add(ctx, k, lifecycle.Transaction{Plan: lifecycle.Plan(pods)})
	}
	if err != nil {
		fmt.Println(err)
		return
	}

	type entry struct{ Network, Interface string }
	follow := func(list ...entry) {
		done, err := m.Reconcile(ctx, k, lifecycle.ReconcileRequest{
			Recorded: func(a delegate.Attached) (lifecycle.Wanted, bool) {
				var e entry
				mine := json.Unmarshal(a.Origin, &e) == nil
				return lifecycle.Wanted{Network: e.Network, IfName: e.Interface}, mine
			},
			Wanted: func(context.Context, lifecycle.AddRecord) (all []lifecycle.Wanted, err error) {
				for _, e := range list {
					plan := func(context.Context, []string) (a delegate.Attachment, err error) {
						a, err = attachment(e.Network, e.Interface)
						if err == nil {
							a.Origin, err = json.Marshal(e)
						}
						return a, err
					}
					all = append(all, lifecycle.Wanted{Network: e.Network, IfName: e.Interface, Plan: plan})
				}
				return all, nil
			},
		})
		for _, d := range done {
			fmt.Println(d.Command, d.Wanted.Network, d.Attached.IfName)
		}
		fmt.Println("err:", err)
	}
	follow(entry{"storage", "net1"}, entry{"video", "net2"})
	follow(entry{"video", "net1"}, entry{"storage", "net2"}) // they swap their interfaces
	follow()
	// Output:
	// ADD storage net1
	// ADD video net2
	// err: <nil>
	// DEL video net2
	// DEL storage net1
	// ADD video net1
	// ADD storage net2
	// err: <nil>
	// DEL storage net2
	// DEL video net1
	// err: <nil>
}
