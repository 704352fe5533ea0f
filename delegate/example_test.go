package delegate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/netconf"
)

// The life of an attachment. A real program leaves Exec out, and processes are
// run; here plugins are functions, and no root is needed.
func Example() {
	ctx := context.Background()
	exec := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{
		"bridge": delegatetest.Result(nil),
		"tuning": delegatetest.Result(nil),
	}}
	network, err := netconf.Parse([]byte(`{
		"cniVersion": "1.0.0", "name": "blue",
		"plugins": [{"type": "bridge"}, {"type": "tuning", "sysctl": {}}]
	}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	iv := &delegate.Invoker{Exec: exec, Path: []string{"/opt/cni/bin"}}

	attached, err := iv.Add(ctx, delegate.Attachment{
		Network: network, ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "net1",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("result:", string(attached.Result))
	fmt.Println("check:", iv.Check(ctx, attached))
	fmt.Println("del:", iv.Del(ctx, attached))
	fmt.Println(strings.Join(exec.Trace(), "\n"))
	// Output:
	// result: {"cniVersion":"1.0.0"}
	// check: <nil>
	// del: <nil>
	// ADD bridge net1
	// ADD tuning net1
	// CHECK bridge net1
	// CHECK tuning net1
	// DEL tuning net1
	// DEL bridge net1
}

// The second network fails, so the first is detached again, and the code of the
// plugin that failed is kept.
func ExampleInvoker_AddAll() {
	exec := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{
		"bridge": delegatetest.Result(nil),
		"sriov":  delegatetest.FailOn("ADD", 107, "no free device", delegatetest.Result(nil)),
	}}
	var plan []delegate.Attachment
	for i, conf := range []string{
		`{"cniVersion": "1.0.0", "name": "blue", "type": "bridge"}`,
		`{"cniVersion": "1.0.0", "name": "red", "type": "sriov"}`,
	} {
		network, err := netconf.Parse([]byte(conf))
		if err != nil {
			fmt.Println(err)
			return
		}
		plan = append(plan, delegate.Attachment{Network: network, ContainerID: "c1", IfName: fmt.Sprint("net", i+1)})
	}
	_, err := (&delegate.Invoker{Exec: exec}).AddAll(context.Background(), plan)
	fmt.Println(err)
	var failed *delegate.Error
	if errors.As(err, &failed) {
		fmt.Println("code", failed.CNICode(), "from", failed.Plugin)
	}
	fmt.Println(strings.Join(exec.Trace(), "\n"))
	fmt.Println("left:", exec.Live())
	// Output:
	// ADD network "red" (net2): plugin "sriov": no free device
	// code 107 from sriov
	// ADD bridge net1
	// ADD sriov net2
	// DEL sriov net2
	// DEL bridge net1
	// left: []
}

// A step of the program's own fails after the ADD, which is then undone.
func ExampleInvoker_Undo() {
	ctx := context.Background()
	exec := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"bridge": delegatetest.Result(nil)}}
	network, err := netconf.Parse([]byte(`{"cniVersion": "1.0.0", "name": "blue", "type": "bridge"}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	iv := &delegate.Invoker{Exec: exec}
	attached, err := iv.AddAll(ctx, []delegate.Attachment{{Network: network, ContainerID: "c1", IfName: "net1"}})
	if err == nil {
		err = iv.Undo(ctx, attached, errors.New("default route: network is unreachable"))
	}
	fmt.Println(err)
	fmt.Println("left:", exec.Live())
	// Output:
	// default route: network is unreachable
	// left: []
}

// An observer feeds metrics and traces.
func ExampleInvoker_observer() {
	exec := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{
		"bridge": delegatetest.FailOn("STATUS", 50, "no daemon", delegatetest.Result(nil)),
	}}
	network, err := netconf.Parse([]byte(`{"cniVersion": "1.1.0", "name": "blue", "type": "bridge"}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	iv := &delegate.Invoker{Exec: exec, Observer: func(ctx context.Context, e delegate.Event) (context.Context, func(error)) {
		return ctx, func(err error) { fmt.Println(e.Command, e.Plugin, e.Network, err != nil) }
	}}
	fmt.Println(iv.Status(context.Background(), network))
	// Output:
	// STATUS bridge blue true
	// STATUS network "blue": plugin "bridge": no daemon
}
