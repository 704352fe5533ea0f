// Package shim is the runtime's end of a thick plugin: the program that the
// runtime runs in the plugin's place hands each command to the daemon of
// package [github.com/metacni/metacni/delegate/thick] and prints what that
// answers. It is small on purpose, and knows nothing of net/http.
//
// A command that it reports as done has been done by the daemon, or, for a DEL
// that came while there was none, is on disk where the next one reads it. It never sends
// an ADD twice unless the daemon has said that it did nothing, and hands on what
// the daemon says of an error as it is, but for a configuration that is repeated
// in it, which is hidden. Parts of one that a daemon quotes are its own affair.
package shim

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/status"
)

// A Client hands commands to a daemon. Its zero value does so for Multus's, but
// cannot answer an ADD of the runtime without Stdout. Goroutines may share a
// Client as long as none writes to its fields.
type Client struct {
	// Socket is the path of the daemon's socket. Empty is multus.sock in the
	// directory that the runtime's configuration names as daemonSocketDir, or
	// in Multus's own, /run/multus.
	Socket string

	// Env is the environment of the process, as "key=value": its CNI_
	// variables and its trace are handed on, and nothing else.
	Env []string

	// Stdout receives the result of an ADD, in one write. A main that hands
	// its own standard output over must have the signal SIGPIPE ignored or
	// notified: otherwise it does not live to undo an ADD whose result nobody
	// reads.
	Stdout io.Writer

	// Wait is how long ADD, CHECK and GC wait for a daemon that is not there,
	// and these and DEL for one that says it is busy or not ready. Zero is 30
	// seconds; less is no wait.
	Wait time.Duration

	// Timeout bounds a whole command but STATUS, which has 2 seconds at most.
	// Zero is 115 seconds: runtimes give up after 2 minutes.
	Timeout time.Duration

	// UndoTimeout is how long the answer is waited for once the command's
	// context or its Timeout has ended: the daemon undoes what it did. Zero is
	// 3 seconds.
	UndoTimeout time.Duration

	// Queue is the directory for DELs that come while the daemon is away: its
	// Server's Queue, as this process sees it. The daemon does them when it is
	// back. A DEL fails with code 11 when no daemon has marked the directory as
	// one that it reads. Empty is no queue: such a DEL fails.
	Queue string

	// QueueWait is how long a DEL waits for a daemon that is away before it goes
	// to the Queue: done at once it leaves less behind, see package thick. Zero
	// is 2 seconds; less is no wait.
	QueueWait time.Duration

	// Away, when not nil, does a DEL that comes while the daemon is away, in
	// place of the Queue. Its error is the command's.
	Away func(ctx context.Context, a *skel.CmdArgs) error
}

// Execute does one command as a plugin does: ADD, CHECK, DEL, GC or STATUS. It
// is what the functions of a shim's main call.
//
// ADD prints its result to Stdout, converted to the version in the
// configuration. If that version cannot express the result, or if writing to
// Stdout fails, Execute does a DEL, through the Queue if need be, and returns an
// error.
//
// Every error is a [*types.Error]: the daemon's own, unchanged, or one with the
// text and the code of the [*Error] that [Client.Do] returns.
func (c *Client) Execute(ctx context.Context, command string, a *skel.CmdArgs) error {
	if command == "ADD" {
		return status.Error(c.add(ctx, a))
	}
	_, err := c.Do(ctx, command, a)
	return status.Error(err)
}

// Do has the daemon do one command of the runtime: ADD, CHECK, DEL, GC or
// STATUS. The result of an ADD is of the version that the daemon chose; for
// other commands it is nil. It prints nothing.
//
// An error that the daemon answers is returned as it is, a [*types.Error]. So
// is one of Away. Any other is an [*Error]. After an ADD that ended in an error
// the attachment may be there in part, as with any plugin: a DEL is due.
//
// ADD, CHECK and GC wait for a daemon that is away, [ErrAway], and all commands
// but STATUS for one that is busy. A daemon that goes away before it has
// answered is [ErrLost] to an ADD; other commands are sent again. A DEL that
// finds no daemon is left to Away, or to the Queue after QueueWait, and nil means
// then that it has been done or survives a loss of power. STATUS tries once.
//
// When ctx ends, or the Timeout, the daemon is told so and its answer is waited
// for a little longer. A result that comes after that is not returned: the
// error is ctx's, and so it is when nothing comes. What is returned for a DEL
// is then never nil unless the daemon has said that it is done.
func (c *Client) Do(ctx context.Context, command string, a *skel.CmdArgs) (types.Result, error) {
	k := c.call(wire.PathCNI, command, a)
	switch command {
	case "ADD", "CHECK", "GC":
	case "DEL":
		k.leave = true
	case "STATUS":
		k.once = true
	default:
		return nil, k.fail(fmt.Errorf("%w %q", errCommand, command))
	}
	return k.do(ctx)
}

// Attach has the daemon attach one more network to a running container (ADD),
// check it (CHECK) or detach it (DEL). The configuration in a is that of the
// network, and the interface is the one it gets; daemons take an empty name for
// eth0. with says what else is asked of the interface, and may be nil.
//
// It behaves like [Client.Do] with one difference: a DEL waits for a daemon that
// is away, as the other commands do. It is not left to Away or to the Queue,
// because its caller is no runtime and can ask again. A daemon that does not
// attach networks to running containers answers with code 999.
func (c *Client) Attach(ctx context.Context, command string, a *skel.CmdArgs, with *wire.Attributes) (types.Result, error) {
	k := c.call(wire.PathAttach, command, a)
	k.request.Attributes = with
	switch command {
	case "ADD", "CHECK", "DEL":
	default:
		return nil, k.fail(fmt.Errorf("%w %q", errCommand, command))
	}
	return k.do(ctx)
}

// Info asks the daemon what it can do, once and for 2 seconds at most. Daemons
// that are older than the question, all of Multus's, answer 404, which is an
// [*Error] with code 999.
func (c *Client) Info(ctx context.Context) (wire.Info, error) {
	k := c.call(wire.PathInfo, "INFO", &skel.CmdArgs{})
	k.once = true
	return k.info(ctx)
}

// add is ADD with its result printed.
func (c *Client) add(ctx context.Context, a *skel.CmdArgs) error {
	k := c.call(wire.PathCNI, "ADD", a) // for its words
	version, err := create.DecodeVersion(a.StdinData)
	if err != nil {
		return k.fail(errConfig)
	}
	if c.Stdout == nil {
		return k.fail(errNoStdout) // before anything is attached
	}
	within, cancel := context.WithTimeout(ctx, c.timeout())
	defer cancel()
	result, err := c.Do(within, "ADD", a)
	if err != nil {
		return err
	}
	err = show(c.Stdout, result, version)
	if err == nil {
		return nil
	}
	if within.Err() != nil {
		within, cancel = context.WithTimeout(context.WithoutCancel(ctx), c.undoTimeout())
		defer cancel()
	}
	if _, undo := c.Do(within, "DEL", a); undo != nil {
		err = fmt.Errorf("%w; then DEL: %w", err, undo)
	}
	return k.fail(err)
}

func (c *Client) wait() time.Duration {
	return orDefault(c.Wait, 30*time.Second)
}

func (c *Client) queueWait() time.Duration {
	return orDefault(c.QueueWait, 2*time.Second)
}

func (c *Client) timeout() time.Duration {
	return orDefault(c.Timeout, 115*time.Second)
}

func (c *Client) undoTimeout() time.Duration {
	return orDefault(c.UndoTimeout, 3*time.Second)
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}
