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

// WithFiles returns a context with which [Process] hands files down to the
// plugins it runs, as descriptors 3 and up. Use it to keep a lock until the last
// descendant of this process exits. Files of an outer call come first. The caller
// keeps the files open until the plugins have exited. An Exec that starts no
// processes ignores them. See also [Files].
func WithFiles(ctx context.Context, files ...*os.File) context.Context {
	return flock.WithFiles(ctx, files...)
}

// Files returns the files of ctx that programs are to inherit, such as the lock of a
// container; see [WithFiles]. They are for the ExtraFiles of an exec.Cmd. The caller must
// not close them.
//
// If the operation is killed, a program with the lock that is in the same process group as
// the killed process, or was started by a [Process], is killed before the next operation. The next
// operation waits for another program until it ends, and fails with CNI code 11.
func Files(ctx context.Context) []*os.File {
	_, _ = flock.Start(ctx) // of its end nobody tells
	return flock.Files(ctx)
}

type envContextKey struct{}

// WithEnv returns a context with which an [Invoker] adds variables to the environment of
// plugins, as "key=value". They come after those of Invoker.Env and of an outer WithEnv, and
// the last one of a key counts. Variables without "=" and the six CNI_ variables of the
// specification are ignored. An Observer can use it to give each invocation its own variables.
func WithEnv(ctx context.Context, env ...string) context.Context {
	return context.WithValue(ctx, envContextKey{}, slices.Concat(envOf(ctx), env))
}

func envOf(ctx context.Context) []string {
	env, _ := ctx.Value(envContextKey{}).([]string)
	return env
}

type noNewPrivsKey struct{}

// WithNoNewPrivs returns a context with which [Process] runs plugins that can gain no
// privileges, and neither can their descendants: the kernel's no_new_privs is set. Programs
// with a set-user-ID bit or file capabilities run without these privileges, and a transition
// of SELinux fails unless its policy has nnp_transition. What the plugin inherits from this
// process it keeps. An Exec that starts no processes ignores it.
func WithNoNewPrivs(ctx context.Context) context.Context {
	return context.WithValue(ctx, noNewPrivsKey{}, true)
}

func (p *Process) grace() time.Duration     { return cmp.Or(p.Grace, time.Second) }
func (p *Process) waitDelay() time.Duration { return cmp.Or(p.WaitDelay, time.Second) }
