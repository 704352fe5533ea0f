// Package shim is the client of a thick plugin: the program that the runtime
// executes sends each command to the daemon of package
// [github.com/metacni/metacni/delegate/thick] and prints the answer. It is small
// on purpose and does not import net/http, with which a command takes more than a tenth longer.
//
// When a command succeeds, the daemon has done it. The exception is a DEL while the
// daemon is away: it may be on disk, where the next daemon reads it. An ADD is
// sent twice only if the daemon has answered that it did nothing. Errors of the
// daemon are passed on unchanged, except that the configuration as a whole is hidden,
// and each string and number under a key with auth, bearer, cred, key, pass, psk, pwd,
// secret or token in its name, as in the errors of package delegate.
package shim

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/status"
)

// A Client sends commands to a daemon; [Main] needs none. It needs a Socket, and Stdout for
// an ADD.
// Goroutines may share a Client as long as none writes to its fields.
type Client struct {
	// Socket is the absolute path of the daemon's socket. With an empty or a
	// relative path every command fails with code 7.
	Socket string

	// Env is the environment of the process, as "key=value". Only its CNI_
	// variables and its trace are sent.
	Env []string

	// Stdout receives the result of an ADD, in one write. A main that sets it
	// to the standard output of the process must have the signal SIGPIPE
	// notified or ignored. Otherwise a result that nobody reads ends the
	// process before it can undo the ADD.
	Stdout io.Writer

	// Wait is how long ADD, CHECK and GC wait for a daemon that is away, and
	// ADD, CHECK, GC and DEL for one that is busy or not ready. Zero means 30
	// seconds, a negative value no wait.
	Wait time.Duration

	// Timeout limits a command. STATUS never has more than 2 seconds. Zero means
	// 115 seconds, because runtimes give up after 2 minutes.
	Timeout time.Duration

	// UndoTimeout is how long the Client waits for an answer after the context
	// or the Timeout has ended, while the daemon undoes what it did. Zero means
	// 3 seconds.
	UndoTimeout time.Duration

	// Queue is the directory for DELs while the daemon is away: the Queue of its
	// Server, as this process sees it. The next daemon does them. A DEL fails
	// with code 11 if no daemon has marked the directory as one that it reads.
	// Empty means no queue: a DEL without a daemon fails.
	Queue string

	// QueueWait is how long a DEL waits for a daemon that is away before it is
	// queued. A DEL that is done at once can remove more, see package thick.
	// Zero means 2 seconds, a negative value no wait.
	QueueWait time.Duration

	// Away, when not nil, does a DEL while the daemon is away, before the shim
	// waits for it. It reports false if it cannot do the DEL: then that is queued,
	// or fails with the error of Away if there is no Queue. Otherwise the error is
	// that of the command.
	//
	// With a Queue, the configuration in a is the one that the daemon would use:
	// its Server.Override is in the Queue. Until a daemon has left it there, Away is
	// not called.
	Away func(ctx context.Context, a *skel.CmdArgs) (done bool, err error)

	// Recorded, when not nil, returns when the attachment of a DEL was recorded, as
	// package lifecycle has it, or zero if it is not recorded. known is false if that
	// cannot be known. The arguments are those of Away. A queued DEL then removes no
	// attachment that was recorded at another time, or later.
	Recorded func(ctx context.Context, a *skel.CmdArgs) (at time.Time, known bool)
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
// text and the code of the error that [Client.Do] returns.
func (c *Client) Execute(ctx context.Context, command string, a *skel.CmdArgs) error {
	if command == "ADD" {
		return status.Error(c.add(ctx, a))
	}
	_, err := c.Do(ctx, command, a, nil)
	return status.Error(err)
}

// Do sends one command to the daemon: ADD, CHECK, DEL, GC or STATUS. It returns
// the result of an ADD in the version that the daemon chose, and nil for other
// commands. It prints nothing; see [Client.Execute].
//
// With attributes that are not nil, Do has the daemon attach one more network to a
// running container (ADD), check it (CHECK) or detach it (DEL). Then the configuration in
// a is the one of the network, and the interface is the one it gets; daemons take an empty
// name for eth0. A daemon that does not attach networks to running containers answers with
// code 999.
//
// An error that the daemon answers is returned unchanged, as a [*types.Error]. An
// error of Away is returned unchanged too. All others say which command failed, and
// quote nothing of the configuration. Their CNI code is
//   - 11 if the command may succeed later,
//   - 6 for a message that cannot be decoded,
//   - 7 without the absolute path of a socket,
//   - 5 for an I/O failure,
//   - 4 for an unknown command,
//   - 1 for a result that the wanted version cannot express,
//   - 999 otherwise.
//
// For STATUS, 50 takes the place of 11, 6 and 5. After an ADD that failed the
// attachment may exist in part, as with any plugin, and needs a DEL.
//
// If no daemon listens, it is away:
//   - ADD, CHECK and GC wait for it, and a DEL of one more network or of a step does,
//     because its caller is no runtime and can ask again;
//   - DEL is left to Away, or waits for QueueWait and is then queued. Then nil
//     means that Away has done it, or that it survives a loss of power;
//   - STATUS fails.
//
// If the daemon is busy, all commands except STATUS wait. If the daemon goes away
// before it answers, an ADD fails, and the others are sent again.
//
// When ctx or the Timeout ends, the daemon is told to cancel the command, and Do
// waits up to UndoTimeout for its answer. The error is then that of the daemon or
// the reason why ctx ended, even if a result arrives. A DEL returns nil only if
// the daemon has answered that it is done.
func (c *Client) Do(ctx context.Context, command string, a *skel.CmdArgs, with *wire.Attributes) (types.Result, error) {
	k := c.call(command, a, with)
	if !ofContainer(command) && (with != nil || command != "GC" && command != "STATUS") {
		return nil, k.fail(fmt.Errorf("%w %q", errCommand, command))
	}
	return k.do(ctx)
}

// add executes ADD and prints its result.
func (c *Client) add(ctx context.Context, a *skel.CmdArgs) error {
	k := c.call("ADD", a, nil)
	var conf struct{ CNIVersion string }
	if err := json.Unmarshal(a.StdinData, &conf); err != nil {
		return k.fail(errConfig)
	}
	if c.Stdout == nil {
		return k.fail(errNoStdout) // before anything is attached
	}
	within, cancel := context.WithTimeout(ctx, c.timeout())
	defer cancel()
	result, err := k.do(within)
	if err != nil {
		return err
	}
	err = show(c.Stdout, result, cmp.Or(conf.CNIVersion, k.version, result.Version())) // without a version, the plugin chooses
	if err == nil {
		return nil
	}
	if within.Err() != nil {
		within, cancel = context.WithTimeout(context.WithoutCancel(ctx), c.undoTimeout())
		defer cancel()
	}
	if _, undo := c.Do(within, "DEL", a, nil); undo != nil {
		err = fmt.Errorf("%w; then DEL: %w", err, undo)
	}
	return k.fail(err)
}

func (c *Client) timeout() time.Duration     { return cmp.Or(c.Timeout, 115*time.Second) }
func (c *Client) undoTimeout() time.Duration { return cmp.Or(c.UndoTimeout, 3*time.Second) }
