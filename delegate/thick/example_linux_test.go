package thick_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/netconf"
)

// The daemon of a plugin that attaches its delegates. The program of its shim has one line
// too: shim.Main("/run/mine/daemon.sock").
func ExampleMain() { //nolint:testableexamples // it serves until a signal
	thick.Main(plugin.Plugin{
		StateDir: "/var/lib/cni/mine",
		Networks: func(_ context.Context, c *plugin.Call) ([]netconf.Network, error) {
			conf, err := plugin.Config[struct{ Delegates []netconf.Network }](c)
			return conf.Delegates, err
		},
	}, "/run/mine/daemon.sock")
}

// A plugin becomes a daemon that has options. Package shim has the client; here the
// requests are sent by hand.
func Example() {
	dir, err := os.MkdirTemp("", "x")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	l, err := thick.Listen(ctx, os.Environ(), filepath.Join(dir, "daemon.sock"))
	if err != nil {
		fmt.Println(err)
		return
	}
	s := &thick.Server{
		Plugin: plugin.Plugin{
			Add: func(_ context.Context, c *plugin.Call) error {
				_, err := fmt.Fprintf(c.System.Stdout, `{"cniVersion":"1.0.0","interfaces":[{"name":%q}]}`, c.IfName)
				return err
			},
			Del: func(_ context.Context, c *plugin.Call) error {
				return types.NewError(11, c.IfName+" is busy", "")
			},
		},
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.Serve(ctx, l) }()

	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", l.Addr().String())
	}}}
	// The configuration is {"name":"pods"}.
	const message = `{"env":{"CNI_COMMAND":%q,"CNI_CONTAINERID":"c1","CNI_NETNS":"/run/netns/c1"},"config":"eyJuYW1lIjoicG9kcyJ9"}`
	for _, command := range []string{"ADD", "DEL", "CHECK", "UPDATE"} {
		r, err := client.Post("http://daemon/cni", "application/json", bytes.NewReader(fmt.Appendf(nil, message, command)))
		if err != nil {
			fmt.Println(err)
			return
		}
		body, _ := io.ReadAll(r.Body)
		_ = r.Body.Close()
		fmt.Println(r.StatusCode, string(body))
	}
	stop() // and Serve finishes what has begun
	fmt.Println(<-stopped)
	// Output:
	// 200 {"Result":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0"}]},"cniVersion":"1.0.0"}
	// 500 {"code":11,"msg":"eth0 is busy"}
	// 500 {"code":4,"msg":"the plugin has no CHECK"}
	// 400 {"code":4,"msg":"unknown CNI_COMMAND \"UPDATE\""}
	// <nil>
}
