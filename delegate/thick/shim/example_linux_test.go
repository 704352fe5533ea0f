package shim_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/delegate/thick/shim"
)

// The shim of a daemon that calls thick.Main with the same socket.
func ExampleMain() { //nolint:testableexamples // it is a whole program
	shim.Main("/run/mine/daemon.sock")
}

// A shim that has options executes each command with a Client, in the functions of a
// plugin.Plugin. Here everything is in one process, and plain calls take the place of the
// runtime.
func Example() {
	dir, err := os.MkdirTemp("", "x")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	socket, queue := filepath.Join(dir, "daemon.sock"), filepath.Join(dir, "queue")
	l, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Println(err)
		return
	}
	daemon := &thick.Server{Queue: queue, Plugin: plugin.Plugin{
		Add: func(_ context.Context, c *plugin.Call) error {
			_, err := fmt.Fprint(c.System.Stdout, `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.5/24"}]}`)
			return err
		},
		Check: func(context.Context, *plugin.Call) error {
			return types.NewError(11, "the switch does not answer", "")
		},
		Del: func(context.Context, *plugin.Call) error { return nil },
	}}
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- daemon.Serve(ctx, l) }()

	c := &shim.Client{Socket: socket, Stdout: os.Stdout, Queue: queue, QueueWait: time.Millisecond}
	args := &skel.CmdArgs{
		ContainerID: "c1", Netns: "/run/netns/c1", IfName: "eth0", Path: "/opt/cni/bin",
		StdinData: []byte(`{"cniVersion":"0.2.0","name":"blue","type":"multinet-shim"}`),
	}
	background := context.Background()
	fmt.Println(c.Execute(background, "ADD", args))

	var said *types.Error
	if err := c.Execute(background, "CHECK", args); errors.As(err, &said) {
		fmt.Println(said.Code, said.Msg)
	}

	stop()
	fmt.Println(<-stopped)
	fmt.Println(c.Execute(background, "DEL", args)) // on disk for the next daemon
	// Output:
	// {
	//     "cniVersion": "0.2.0",
	//     "ip4": {
	//         "ip": "10.1.0.5/24"
	//     },
	//     "dns": {}
	// }
	// <nil>
	// 11 the switch does not answer
	// <nil>
	// <nil>
}
