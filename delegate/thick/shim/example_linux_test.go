package shim_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

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
// Here a server of net/http plays the daemon, and a plain call skel.
func Example() {
	dir, err := os.MkdirTemp("", "x")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "multus.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Println(err)
		return
	}
	daemon := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), `"CNI_COMMAND":"ADD"`) {
			fmt.Fprint(w, `{"Result":{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.5/24"}]}}`)
			return
		}
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprint(w, `{"code":11,"msg":"the switch does not answer"}`)
	})}
	go func() { _ = daemon.Serve(l) }()

	c := &shim.Client{Socket: socket, Stdout: os.Stdout, Queue: filepath.Join(dir, "queue")}
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

	_ = daemon.Close()
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
}
