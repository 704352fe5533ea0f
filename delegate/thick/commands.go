package thick

import (
	"context"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
)

// Commands are the functions of a plugin, one for each command of the
// specification. A nil function is a command that the plugin does not have:
// the server answers it with code 4.
//
// A [Server] calls the functions from any number of goroutines at once, but
// runs one operation of a container at a time. GC and Status belong to no
// container and run beside all others.
//
// A function must return soon after its context has ended, and must have undone
// what it did. The context ends
//   - at the deadline of the operation,
//   - when the shim has gone,
//   - when a DEL of the container arrives, unless the function is Del itself,
//   - when the server stops and its time to drain is over.
//
// [context.Cause] says which.
//
// An Add that returns an error has undone what it did. When Add panics, when it
// returns no valid result, and when nobody is there to receive its result, the
// server calls Del with the same arguments. The context of that Del does not
// end with the context of the Add.
//
// The server has checked the arguments as package skel does. Add, Check and Del
// get a container ID and an interface name that cannot be paths, Add and Check
// also a network namespace. GC and Status get none of the three. StdinData is a
// JSON object, or empty when the shim sent none. A function may keep and change
// its arguments.
//
// Errors reach the runtime with the CNI code that [status.Code] finds in them
// and with their full text, so they must not quote the configuration.
//
// [status.Code]: https://pkg.go.dev/github.com/metacni/metacni/status#Code
type Commands struct {
	Add    func(ctx context.Context, a *skel.CmdArgs) (types.Result, error)
	Check  func(ctx context.Context, a *skel.CmdArgs) error
	Del    func(ctx context.Context, a *skel.CmdArgs) error
	GC     func(ctx context.Context, a *skel.CmdArgs) error
	Status func(ctx context.Context, a *skel.CmdArgs) error
}

// timeouts has the limit of an operation with each command of the runtime, counted from the
// arrival of the request.
//
//nolint:gochecknoglobals // never written
var timeouts = map[delegate.Command]time.Duration{
	delegate.CommandAdd:    110 * time.Second,
	delegate.CommandCheck:  60 * time.Second,
	delegate.CommandDel:    110 * time.Second,
	delegate.CommandGC:     110 * time.Second,
	delegate.CommandStatus: 2 * time.Second,
}

// removes reports whether c only removes attachments. Such commands are served
// while the server drains.
func removes(c delegate.Command) bool { return c == delegate.CommandDel || c == delegate.CommandGC }

// run calls the function for the command. Only an ADD has a result.
func (c *Commands) run(ctx context.Context, command delegate.Command, a *skel.CmdArgs) (types.Result, error) {
	if command == delegate.CommandAdd && c.Add != nil {
		return c.Add(ctx, a)
	}
	f := map[delegate.Command]func(context.Context, *skel.CmdArgs) error{
		delegate.CommandCheck: c.Check, delegate.CommandDel: c.Del, delegate.CommandGC: c.GC, delegate.CommandStatus: c.Status,
	}[command]
	if f == nil {
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables, "the plugin has no "+string(command), "")
	}
	return nil, f(ctx, a)
}
