package shim_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/delegate/thick/shim"
)

// A shim's main gives a Client its environment and its standard output, and
// what it returns from Funcs to skel:
//
//	func main() {
//		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
//		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
//		defer stop()
//		c := &shim.Client{Env: os.Environ(), Stdout: os.Stdout, Queue: "/var/lib/cni/multinet.queue"}
//		if e := skel.PluginMainFuncsWithError(c.Funcs(ctx), version.All, "multinet-shim"); e != nil {
//			_ = e.Print()
//			os.Exit(1)
//		}
//	}
//
// Here everything is in one process, and a plain call plays skel.
func Example() {
	dir, err := os.MkdirTemp("", "x")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	socket, queue := filepath.Join(dir, "multus.sock"), filepath.Join(dir, "queue")
	l, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Println(err)
		return
	}
	daemon := &thick.Server{Queue: queue, Commands: thick.Funcs(func(_ context.Context, stdout io.Writer) skel.CNIFuncs {
		return skel.CNIFuncs{
			Add: func(*skel.CmdArgs) error {
				_, err := fmt.Fprint(stdout, `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.5/24"}]}`)
				return err
			},
			Check: func(*skel.CmdArgs) error { return types.NewError(11, "the switch does not answer", "") },
		}
	})}
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- daemon.Serve(ctx, l) }()

	c := &shim.Client{Socket: socket, Stdout: os.Stdout, Queue: queue}
	plugin := c.Funcs(context.Background())
	args := &skel.CmdArgs{
		ContainerID: "c1", Netns: "/run/netns/c1", IfName: "eth0", Path: "/opt/cni/bin",
		StdinData: []byte(`{"cniVersion":"0.2.0","name":"blue","type":"multinet-shim"}`),
	}
	fmt.Println(plugin.Add(args))

	var said *types.Error
	if err := plugin.Check(args); errors.As(err, &said) {
		fmt.Println(said.Code, said.Msg)
	}

	stop()
	fmt.Println(<-stopped)
	fmt.Println(plugin.Del(args)) // on disk for the next daemon
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
