// Package shim is the runtime's end of a thick plugin: the program that the
// runtime runs in the plugin's place hands each command to the daemon of
// package [github.com/metacni/metacni/delegate/thick] and prints what that
// answers. It is small on purpose, and knows nothing of net/http.
package shim

import (
	"context"
	"io"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
)

// A Client hands commands to a daemon.
type Client struct {
	// Socket is the path of the daemon's socket. Empty is Multus's,
	// /run/multus/multus.sock.
	Socket string

	// Env is the environment of the process, as "key=value": its CNI_
	// variables and its trace are handed on, and nothing else.
	Env []string

	// Stdout receives the result of an ADD.
	Stdout io.Writer

	// Wait is how long ADD, CHECK and GC wait for a daemon that is not there,
	// or not ready. Zero is 30 seconds.
	Wait time.Duration

	// Timeout bounds a whole command but STATUS, which has 2 seconds. Zero is
	// 115 seconds: runtimes give up after 2 minutes.
	Timeout time.Duration

	// UndoTimeout is how long the answer is waited for once the command's
	// context has ended: the daemon undoes what it did. Zero is 3 seconds.
	UndoTimeout time.Duration

	// Queue is the directory for DELs that come while the daemon is away. It
	// does them when it is back. Empty is no queue: such a DEL fails.
	Queue string

	// Away, when not nil, does a DEL that comes while the daemon is away, in
	// place of the Queue.
	Away func(ctx context.Context, a *skel.CmdArgs) error
}
