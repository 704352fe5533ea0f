package plugin

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
)

// undoTimeout is used if [System.UndoTimeout] is zero. Runtimes do not wait
// long between SIGTERM and SIGKILL.
const undoTimeout = 3 * time.Second

// DefaultPath is the PATH of delegated plugins if the environment has none. They
// need it to find programs such as iptables.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// A System is what a plugin may use of the process it runs in: streams,
// environment, and how it runs other plugins. [OfProcess] returns that of an
// executable. Tests and daemons fill in their own.
type System struct {
	// Exec finds and runs plugins. Nil means a [delegate.Process] with this
	// Stderr and Root.
	Exec delegate.Exec

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
	// ended. Zero means 3 seconds.
	UndoTimeout time.Duration

	// InterfaceNames, Stale and Timed are fields of [lifecycle.Manager].
	InterfaceNames func(netns string) ([]string, error)
	Stale          func(recorded time.Time) (bool, error)
	Timed          func(lifecycle.Timing)

	// Observer is the field of [delegate.Invoker].
	Observer func(context.Context, delegate.Event) (context.Context, func(error))

	// Stages is the field of [delegate.Invoker]. It is told of [Plugin.Do] too.
	Stages delegate.Stages

	// Logger receives debug records: those of [delegate.Invoker], and one for a result with keys
	// that the version of the runtime does not have. Nil discards them.
	Logger *slog.Logger

	alone bool // the process executes one command only
}

// NewManager returns a Manager of the records in dir. It runs the plugins in the
// directories of path on behalf of a plugin of type typ, which is not run itself.
// When ten DELs of an attachment have failed and its network namespace or its interface is
// gone, DEL succeeds; see [lifecycle.Manager.DelTries].
func (s System) NewManager(dir, typ string, path []string) *lifecycle.Manager {
	invoker := &delegate.Invoker{
		Exec: s.exec(), Env: withPath(s.Env), Path: path, Refuse: Plugin{}.refuse([]string{typ}), UndoTimeout: s.UndoTimeout, Observer: s.Observer, Stages: s.Stages, Logger: s.Logger,
	}
	if invoker.UndoTimeout == 0 {
		invoker.UndoTimeout = undoTimeout
	}
	return &lifecycle.Manager{
		Dir: dir, Type: typ, Root: string(s.Root), InterfaceNames: s.InterfaceNames, Stale: s.Stale, Timed: s.Timed, DelTries: delTries, Invoker: invoker,
	}
}

// exec is the Exec of s, or what nil means.
func (s System) exec() delegate.Exec {
	if s.Exec != nil {
		return s.Exec
	}
	return &delegate.Process{Stderr: s.Stderr, Root: string(s.Root)}
}

// withPath returns env with [DefaultPath] if it has no PATH.
func withPath(env []string) []string {
	path := ""
	for _, e := range env {
		if value, ok := strings.CutPrefix(e, "PATH="); ok {
			path = value // the last one counts
		}
	}
	if path != "" {
		return env
	}
	return append(slices.Clone(env), "PATH="+DefaultPath)
}
