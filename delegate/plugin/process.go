package plugin

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
)

// DefaultUndoTimeout is what a zero [Process.UndoTimeout] means. Runtimes do not
// wait long between SIGTERM and SIGKILL.
const DefaultUndoTimeout = 3 * time.Second

// DefaultPath is the PATH of delegated plugins in an environment without one.
// They need it to find programs such as iptables.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// A Process is what a plugin has of the process it runs in. A test, a daemon and
// a resident plugin make one of their own.
type Process struct {
	// Exec finds and runs plugins. Nil means a [delegate.Process] with Stderr
	// and Root.
	Exec invoke.Exec

	// Env is the environment, as "key=value"; of a key given twice the last
	// counts. Delegated plugins receive it too, with a PATH if it has none.
	Env []string

	// Stdin is where [Plugin.Run] reads the configuration, and Stdout where the
	// result is printed. Stderr receives what delegated plugins print there;
	// nil discards it.
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	// Root is the node's root directory, where that is not the process's own.
	Root Root

	// UndoTimeout is how long undoing an ADD may take once its context has
	// ended. Zero means [DefaultUndoTimeout].
	UndoTimeout time.Duration

	// InterfaceNames is that of a [lifecycle.Manager].
	InterfaceNames func(netns string) ([]string, error)

	// Observer is that of a [delegate.Invoker].
	Observer func(context.Context, delegate.Event) (context.Context, func(error))
}

// NewManager returns a manager of the records in dir that runs the plugins in
// the directories of path, on behalf of a plugin of type typ. A DEL that failed
// ten times is a success for the runtime once the network namespace is gone,
// see [lifecycle.Manager.DelTries].
func (p Process) NewManager(dir, typ string, path []string) *lifecycle.Manager {
	invoker := &delegate.Invoker{
		Exec: p.Exec, Env: WithPath(p.Env), Path: path, Self: []string{typ}, UndoTimeout: p.UndoTimeout, Observer: p.Observer,
	}
	if invoker.Exec == nil {
		invoker.Exec = &caughtFirst{delegate.Process{Stderr: p.Stderr, Root: string(p.Root)}}
	}
	if invoker.UndoTimeout == 0 {
		invoker.UndoTimeout = DefaultUndoTimeout
	}
	return &lifecycle.Manager{Dir: dir, Root: string(p.Root), InterfaceNames: p.InterfaceNames, DelTries: delTries, Invoker: invoker}
}

// WithPath returns env with [DefaultPath] if it has no PATH.
func WithPath(env []string) []string {
	for _, e := range env {
		if strings.HasPrefix(e, "PATH=") && e != "PATH=" {
			return env
		}
	}
	return append(slices.Clone(env), "PATH="+DefaultPath)
}

// OfProcess returns the Process of this operating system process.
func OfProcess() Process {
	return Process{Env: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
}

// Version returns the version of the main module that the go command has built
// this program of, such as "v1.2.0", or "(devel)" where it knows of none.
func Version() string {
	if built, ok := debug.ReadBuildInfo(); ok && built.Main.Version != "" {
		return built.Main.Version
	}
	return "(devel)"
}

// Main runs p as this process is asked to, and exits with status 1 if that
// fails: see [Plugin.Run]. The first SIGTERM, SIGINT or SIGHUP ends the context
// of the command, which is then undone. A result that nobody reads is an error,
// not the end of the process.
func Main(p Plugin) {
	if p.Run(untilSignal(context.Background()), OfProcess()) != nil {
		os.Exit(1)
	}
}

type caughtKey struct{}

// untilSignal returns a context that ends with ctx, and with the first signal
// that asks the process to stop. Signals are caught a little later, because
// that takes the runtime some threads and a tenth of a plugin's time: whatever
// changes something calls untilCaught first. A process that is killed before
// that has run nothing, and DEL undoes it.
func untilSignal(ctx context.Context) context.Context {
	caught := make(chan struct{})
	ctx, end := context.WithCancelCause(context.WithValue(ctx, caughtKey{}, caught))
	go func() {
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGTERM)
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
		close(caught)
		signal.Notify(asked, os.Interrupt, syscall.SIGHUP) // no runtime sends these: they can wait
		end(fmt.Errorf("%s signal received", <-asked))
	}()
	return ctx
}

// untilCaught waits until the signals are caught that end ctx.
func untilCaught(ctx context.Context) {
	if caught, ok := ctx.Value(caughtKey{}).(chan struct{}); ok {
		<-caught
	}
}

// A caughtFirst process calls untilCaught before it runs a plugin.
type caughtFirst struct{ delegate.Process }

// ExecPlugin is that of [delegate.Process].
func (x *caughtFirst) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	untilCaught(ctx)
	return x.Process.ExecPlugin(ctx, path, stdin, environ)
}
