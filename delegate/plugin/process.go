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

// DefaultUndoTimeout is used if [Process.UndoTimeout] is zero. Runtimes do not wait
// long between SIGTERM and SIGKILL.
const DefaultUndoTimeout = 3 * time.Second

// DefaultPath is the PATH of delegated plugins if the environment has none. They
// need it to find programs such as iptables.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// A Process is what a plugin may use of the process it runs in: streams,
// environment, and how it runs other plugins. [OfProcess] returns that of an
// executable. Tests and daemons fill in their own.
type Process struct {
	// Exec finds and runs plugins. Nil means a [delegate.Process] with this
	// Stderr and Root.
	Exec invoke.Exec

	// Env is the environment, as "key=value". If a key is given twice, the last
	// one counts. Delegated plugins receive it too, with [DefaultPath] if it has
	// no PATH.
	Env []string

	// [Plugin.Run] reads the configuration from Stdin. Results are printed to
	// Stdout, which an ADD requires. Stderr receives the stderr of delegated
	// plugins; nil discards it.
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	// Root is the node's root directory, if it is not this process's own.
	Root Root

	// UndoTimeout is how long undoing an ADD may take once its context has
	// ended. Zero means [DefaultUndoTimeout].
	UndoTimeout time.Duration

	// InterfaceNames is the field of [lifecycle.Manager].
	InterfaceNames func(netns string) ([]string, error)

	// Observer is the field of [delegate.Invoker].
	Observer func(context.Context, delegate.Event) (context.Context, func(error))
}

// NewManager returns a Manager of the records in dir. It runs the plugins in the
// directories of path on behalf of a plugin of type typ, which is not run itself.
// When ten DELs of an attachment have failed and its network namespace is gone,
// DEL succeeds; see [lifecycle.Manager.DelTries].
func (p Process) NewManager(dir, typ string, path []string) *lifecycle.Manager {
	invoker := &delegate.Invoker{
		Exec: p.exec(), Env: WithPath(p.Env), Path: path, Self: []string{typ}, UndoTimeout: p.UndoTimeout, Observer: p.Observer,
	}
	if invoker.UndoTimeout == 0 {
		invoker.UndoTimeout = DefaultUndoTimeout
	}
	return &lifecycle.Manager{Dir: dir, Root: string(p.Root), InterfaceNames: p.InterfaceNames, DelTries: delTries, Invoker: invoker}
}

// exec is the Exec of p, or what nil means.
func (p Process) exec() invoke.Exec { //nolint:ireturn // it is one of two
	if p.Exec != nil {
		return p.Exec
	}
	return &caughtFirst{delegate.Process{Stderr: p.Stderr, Root: string(p.Root)}}
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

// OfProcess returns a Process with the environment and the standard streams of
// this operating system process.
func OfProcess() Process {
	return Process{Env: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
}

// Version returns the version of the main module of this program, such as
// "v1.2.0", or "(devel)" if it is not known.
func Version() string {
	if built, ok := debug.ReadBuildInfo(); ok && built.Main.Version != "" {
		return built.Main.Version
	}
	return "(devel)"
}

// Main runs p with [Plugin.Run] and the [OfProcess] Process, and exits with status
// 1 if that fails. The first SIGTERM, SIGINT or SIGHUP ends the context of the
// command; an ADD is then undone. If nobody reads the result, writing it is an
// error: the process is not killed by SIGPIPE.
func Main(p Plugin) {
	if p.Run(untilSignal(context.Background()), OfProcess()) != nil {
		os.Exit(1)
	}
}

type caughtKey struct{}

// untilSignal returns a context that ends with ctx, or at the first signal that
// asks the process to stop. Another goroutine sets the handlers up, because that
// takes a tenth of a plugin's time: code that changes something calls untilCaught
// first. A process that is killed before that has run nothing.
func untilSignal(ctx context.Context) context.Context {
	caught := make(chan struct{})
	ctx, end := context.WithCancelCause(context.WithValue(ctx, caughtKey{}, caught))
	go func() {
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGTERM)
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
		close(caught)
		signal.Notify(asked, os.Interrupt, syscall.SIGHUP) // last: no runtime sends these
		end(fmt.Errorf("%s signal received", <-asked))
	}()
	return ctx
}

// untilCaught waits until the handlers of the signals that end ctx are set up.
func untilCaught(ctx context.Context) {
	if caught, ok := ctx.Value(caughtKey{}).(chan struct{}); ok {
		<-caught
	}
}

// A caughtFirst is a [delegate.Process] that calls untilCaught before it runs a
// plugin.
type caughtFirst struct{ delegate.Process }

// ExecPlugin implements [invoke.Exec].
func (x *caughtFirst) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	untilCaught(ctx)
	return x.Process.ExecPlugin(ctx, path, stdin, environ)
}
