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

// FindInPath returns the path of the first executable regular file called
// plugin in one of paths. Without such a file it fails with [ErrPluginNotFound].
// With a Root the path is one in Root. Relative directories are skipped. When
// this process has no file descriptors left, the error has CNI code 11 (try
// again later) and is not ErrPluginNotFound.
func (p *Process) FindInPath(plugin string, paths []string) (string, error) {
	return p.find(plugin, paths)
}

// ExecPlugin runs the executable at path, which is absolute, with stdin and
// environ. It returns what the plugin printed to stdout if the plugin exits with
// status 0. A plugin that prints more than 4 MiB is killed. An empty environ is an
// empty environment, not that of this process. The working directory of a plugin is
// the root directory.
//
// When ctx ends, the plugin's process group receives SIGTERM, and so does the
// plugin if it has left that group. After the grace period, or when the plugin
// has exited, the group receives SIGKILL, together with the plugin and its
// descendants. Descendants outside the group whose parent has exited are not
// reached. Pipes that are still open after another WaitDelay are closed. In the
// error errors.Is finds the error of the context. A plugin that exits with
// status 0 has succeeded all the same. If ctx has ended before, ExecPlugin runs
// nothing.
//
// A meta-plugin that is run by a Process needs a part of its grace period to
// undo what it did. If it gives its own plugins as long a grace period, then one
// that ignores SIGTERM uses up both: the meta-plugin is killed before it can undo
// anything. Its plugins are killed with it, and its DEL does the rest.
//
// A plugin that cannot be started is [ErrNotRun]. The error has CNI code 11
// (try again later) when the system is short of descriptors, processes or
// memory. An ADD for a network namespace that does not exist is not started
// either: CNI code 8.
//
// If the plugin fails, the error is the [*types.Error] that it printed last.
// Without one the error has the exit status and the last line of stderr. That
// line is cut where a configuration could begin, and does not hold the strings of
// stdin.
//
// An executable that is being written (ETXTBSY) is tried again until ctx ends,
// for 5 seconds at most.
//
// [*types.Error]: https://pkg.go.dev/github.com/containernetworking/cni/pkg/types#Error
func (p *Process) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	return p.execPlugin(ctx, path, stdin, environ)
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
