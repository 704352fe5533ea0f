package resident_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/resident"
	"github.com/metacni/metacni/netconf"
)

// A resident plugin, and the daemon of a meta-plugin that calls it.
func Example() {
	dir, err := os.MkdirTemp("", "resident")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	socket := filepath.Join(dir, "host.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Println(err)
		return
	}

	// The meta-plugin's daemon.
	ready := make(chan struct{})
	r := &resident.Host{Listener: listener, Observer: func(s resident.Status) {
		fmt.Println(s.Info, s.State)
		if s.State == resident.Ready {
			close(ready)
		}
	}}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if err := r.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}

	// The plugin. Its main could pass fixed to plugin.Main as well.
	fixed := plugin.Plugin{Add: func(_ context.Context, c *plugin.Call) error {
		_, err := io.WriteString(c.System.Stdout, `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}]}`)
		return err
	}}
	p := &resident.Resident{Index: "10", Name: "fixed", Types: []string{"fixed"}, Plugin: fixed}
	served := make(chan error)
	go func() { served <- p.Run(ctx, socket) }()
	<-ready

	// An operation of the daemon.
	network, err := netconf.Parse([]byte(`{"cniVersion":"1.1.0","name":"blue","plugins":[{"type":"fixed"}]}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	iv := &delegate.Invoker{Exec: r.Exec(nil), Path: []string{"/opt/cni/bin"}}
	done, err := iv.Add(ctx, delegate.Attachment{Network: network, ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0"})
	fmt.Println(string(done.Result), err)

	if err := r.Stop(ctx); err != nil {
		fmt.Println(err)
	}
	stop()
	fmt.Println(<-served)
	// Output:
	// 10-fixed ready
	// {"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}]} <nil>
	// 10-fixed gone
	// <nil>
}
