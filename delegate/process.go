package delegate

import (
	"context"
	"io"
	"os"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/version"
)

const (
	// DefaultMaxStdout is what a zero [Process.MaxStdout] means, in bytes.
	DefaultMaxStdout = 4 << 20

	// maxStderr is how much of one plugin's stderr is passed on, in bytes.
	maxStderr = 1 << 20

	// busyTimeout bounds how long an executable that is being written is
	// waited for.
	busyTimeout = 5 * time.Second
)

// A Process runs plugins as child processes, each in a process group of its
// own. It is the [invoke.Exec] of real use; the zero Process is ready, and
// discards what plugins write to stderr. A Process is safe for concurrent use
// if its Stderr is.
//
// Running plugins needs Linux 5.4 or later, and Linux 5.6 with a Root.
//
// [invoke.Exec]: https://pkg.go.dev/github.com/containernetworking/cni/pkg/invoke#Exec
type Process struct {
	version.PluginDecoder

	// Stderr receives the stderr of plugins while they run, as the CNI
	// specification asks, up to 1 MiB of each. Nil discards it.
	Stderr io.Writer

	// Grace is how long a plugin has between SIGTERM and SIGKILL when its
	// context ends. Zero means 1 second. While an Add is undone it is at most
	// half of the plugin's share of the time, see [Invoker.UndoTimeout].
	Grace time.Duration

	// WaitDelay bounds how long a plugin that has exited may keep its pipes
	// open through children of its own; what is in them by then is still
	// read. A Stderr that blocks is waited for as long again, and at least for
	// 1 second. Zero means 1 second.
	WaitDelay time.Duration

	// MaxStdout is the most a plugin may print, in bytes; one that prints
	// more is killed. Zero means [DefaultMaxStdout].
	MaxStdout int

	// Root, when not empty, is a directory that plugins see as their root:
	// the child alone changes into it. Paths given to FindInPath are then
	// paths in it, and no link leads out of it.
	Root string
}

// FindInPath returns the path of the first executable regular file called
// plugin in one of paths, or [ErrPluginNotFound]. With a Root it is a path
// inside it. Directories that are not absolute paths are skipped. When this
// process has no file descriptors left, the error has CNI code 11 (try again
// later) and is not ErrPluginNotFound.
func (p *Process) FindInPath(plugin string, paths []string) (string, error) {
	return p.find(plugin, paths)
}

// ExecPlugin runs the executable at path, which is absolute, with stdin and
// environ, and returns
// what it printed to stdout if it exits with status 0. An empty environ is an
// empty environment, not this process's. The working directory of a plugin is
// the root directory.
//
// When ctx ends, the plugin's process group receives SIGTERM, and so does the
// plugin if it has left that group. After the grace period, or when the plugin
// has exited, the group receives SIGKILL, together with the plugin and its
// descendants. Not reached are descendants outside the group whose parent has
// exited. Pipes that are still open after another WaitDelay are dropped. The
// error then is one in which errors.Is finds the context's. A plugin that has
// exited with status 0 has succeeded, even so and whoever holds its pipes. When
// ctx has ended before, nothing is run.
//
// A meta-plugin needs a part of its grace period to undo what it did, and gives
// its own plugins a grace period as well. If that is as long as its own, then a
// plugin that ignores SIGTERM uses up both: the meta-plugin is killed before it
// can undo anything. Its plugins are killed with it, and its DEL does the rest.
//
// A plugin that cannot be started is [ErrNotRun]. The error has CNI code 11
// (try again later) when the system is short of descriptors, processes or
// memory.
//
// A plugin that fails yields the [*types.Error] it printed, also after other
// lines. One that fails without saying why yields an error with its exit status
// and the last line of its stderr, cut where a configuration could begin and
// without the strings of stdin.
//
// An executable that is being written (ETXTBSY) is retried until ctx ends, at
// most for 5 seconds.
//
// [*types.Error]: https://pkg.go.dev/github.com/containernetworking/cni/pkg/types#Error
func (p *Process) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	return p.execPlugin(ctx, path, stdin, environ)
}

type filesKey struct{}

// WithFiles returns a context that makes [Process] hand files down to the
// plugins it runs, as descriptors 3 and up. They are what a lock needs that is
// to be held until the last descendant of this process has ended. Files add up:
// those given first come first. The caller keeps them open until the plugins
// have been run. An Exec that starts no processes ignores it.
func WithFiles(ctx context.Context, files ...*os.File) context.Context {
	return context.WithValue(ctx, filesKey{}, slices.Concat(inherited(ctx), files))
}

func inherited(ctx context.Context) []*os.File {
	files, _ := ctx.Value(filesKey{}).([]*os.File)
	return files
}

func (p *Process) grace() time.Duration     { return orDefault(p.Grace, time.Second) }
func (p *Process) waitDelay() time.Duration { return orDefault(p.WaitDelay, time.Second) }
func (p *Process) maxStdout() int           { return orDefault(p.MaxStdout, DefaultMaxStdout) }

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}
