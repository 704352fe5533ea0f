package lifecycle_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

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
	exec := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"bridge": delegatetest.Result(nil)}}
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
		done, err := m.Reconcile(ctx, k, lifecycle.Reconciliation{
			Recorded: func(a delegate.Attached) (lifecycle.Wanted, bool) {
				var e entry
				mine := json.Unmarshal(a.Origin, &e) == nil
				return lifecycle.Wanted{Network: e.Network, IfName: e.Interface}, mine
			},
			Wanted: func(context.Context, lifecycle.Record) (all []lifecycle.Wanted, err error) {
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
			fmt.Println(d.Op, d.Wanted.Network, d.Attached.IfName)
		}
		fmt.Println("err:", err)
	}
	follow(entry{"storage", "net1"}, entry{"video", "net2"})
	follow(entry{"video", "net1"}, entry{"storage", "net2"}) // they swap their interfaces
	follow()
	// Output:
	// ATTACH storage net1
	// ATTACH video net2
	// err: <nil>
	// DETACH video net2
	// DETACH storage net1
	// ATTACH video net1
	// ATTACH storage net2
	// err: <nil>
	// DETACH storage net2
	// DETACH video net1
	// err: <nil>
}
