package shim

import (
	"context"

	"github.com/metacni/metacni/delegate/plugin"
)

// Main is the main function of a shim: it does one command as [plugin.Main] does, by
// sending it to the daemon at the unix socket, an absolute path; see [Client.Execute]. The
// daemon is a program that calls Main of package
// [github.com/metacni/metacni/delegate/thick] with the same socket. While it is away, a DEL
// fails with code 11.
//
// Without CNI_COMMAND, Main prints what the program is and its version.
//
// To set options, use [plugin.Main] with a [plugin.Plugin] whose functions call
// [Client.Execute].
func Main(socket string) { plugin.Main(forward(socket)) }

// forward returns a plugin that sends each command to the daemon.
func forward(socket string) plugin.Plugin {
	do := func(ctx context.Context, c *plugin.Call) error {
		client := &Client{Socket: socket, Env: c.System.Env, Stdout: c.System.Stdout}
		return client.Execute(ctx, string(c.Command), c.CmdArgs())
	}
	return plugin.Plugin{About: "CNI shim of the daemon at " + socket, Add: do, Check: do, Del: do, GC: do, Status: do}
}
