package delegate

import (
	"cmp"
	"context"
	"io"
	"os"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/internal/flock"
)

const (
	// maxStdout is how many bytes a plugin may print.
	maxStdout = 4 << 20

	// maxStderr is how much of one plugin's stderr is passed on, in bytes.
	maxStderr = 1 << 20

	// busyTimeout bounds how long an executable that is being written is
	// waited for.
	busyTimeout = 5 * time.Second
)

// A Process is an [Exec] that runs plugins as child processes, each in a
// process group of its own. The zero Process is ready to use, and discards what
// plugins write to stderr. A Process is safe for concurrent use if its Stderr is.
//
// Running plugins needs Linux 5.4 or later, and Linux 5.6 with a Root.
type Process struct {
	version.PluginDecoder

	// Stderr receives what plugins write to stderr while they run, up to
	// 1 MiB of each plugin. Nil discards it.
	Stderr io.Writer

	// Grace is how long a plugin has between SIGTERM and SIGKILL when its
	// context ends. Zero means 1 second. While an Add is undone, it is at most
	// half of the plugin's share of [Invoker.UndoTimeout].
	Grace time.Duration

	// WaitDelay bounds how long children of a plugin that has exited may keep
	// its pipes open. What is in the pipes by then is still read. After that, a
	// Stderr that blocks is given WaitDelay again, and at least 1 second. Zero
	// means 1 second.
	WaitDelay time.Duration

	// Root, if not empty, is the root directory of plugins; this process keeps
	// its own. The paths given to FindInPath are paths in Root, and no symbolic
	// link leads out of it.
	Root string
}

// ProcessOptions are for the plugins that are run with a context; see [WithOptions].
type ProcessOptions struct {
	// Files are handed down by a [Process] to the plugins it runs, as descriptors 3 and up.
	// Use them to keep a lock until the last descendant of this process exits. The caller keeps
	// the files open until the plugins have exited. See also [Files].
	Files []*os.File

	// Env are variables, as "key=value", that an [Invoker] adds to the environment of plugins.
	// They come after those of Invoker.Env, and the last one of a key counts. Variables without
	// "=" and the six CNI_ variables of the specification are ignored. An Observer can use it to
	// give each invocation its own variables.
	Env []string

	// NoNewPrivs makes a [Process] run plugins that can gain no privileges, and neither can
	// their descendants: the kernel's no_new_privs is set. Programs with a set-user-ID bit or
	// file capabilities run without these privileges, and a transition of SELinux fails unless
	// its policy has nnp_transition. What the plugin inherits from this process it keeps.
	NoNewPrivs bool
}

// WithOptions returns a context with which plugins are run as o says, in addition to the
// options of ctx: its files and variables come first. An Exec that starts no processes uses
// none but Env.
func WithOptions(ctx context.Context, o ProcessOptions) context.Context {
	outer := optionsOf(ctx)
	ctx = flock.WithFiles(ctx, o.Files...)
	return context.WithValue(ctx, optionsKey{}, ProcessOptions{Env: slices.Concat(outer.Env, o.Env), NoNewPrivs: outer.NoNewPrivs || o.NoNewPrivs})
}

type optionsKey struct{}

// optionsOf returns the options of ctx, without the files.
func optionsOf(ctx context.Context) ProcessOptions {
	o, _ := ctx.Value(optionsKey{}).(ProcessOptions)
	return o
}

// Files returns the files of ctx that programs are to inherit, such as the lock of a
// container; see [ProcessOptions]. They are for the ExtraFiles of an exec.Cmd. The caller must
// not close them.
//
// If the operation is killed, a program with the lock that is in the same process group as
// the killed process, or was started by a [Process], is killed before the next operation. The next
// operation waits for another program until it ends, and fails with CNI code 11.
func Files(ctx context.Context) []*os.File {
	_, _ = flock.Start(ctx) // of its end nobody tells
	return flock.Files(ctx)
}

func (p *Process) grace() time.Duration     { return cmp.Or(p.Grace, time.Second) }
func (p *Process) waitDelay() time.Duration { return cmp.Or(p.WaitDelay, time.Second) }
