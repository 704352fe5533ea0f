// Package delegate runs CNI plugins on behalf of another plugin.
//
// An [Invoker] works on attachments. An [Attachment] is one network
// configuration, of one plugin or a chain of plugins, applied to one container
// interface:
//
//   - Add runs the ADD of each plugin in order. When one fails, Add undoes what
//     has been done before it returns the error.
//   - Del runs the DEL of each plugin, last first, and goes on past failures.
//   - Check, Status and GC run the commands of these names.
//
// An error keeps the CNI error code of the plugin that failed, and does not
// repeat the plugin's configuration, which may hold credentials: [Error.Error]
// says what it hides.
//
// The package does not use the environment, the standard files or the working
// directory of the process. What a plugin sees comes from the Invoker and the
// Attachment.
//
// [Process], which runs the plugins, needs Linux. On other systems the package
// builds, and an Invoker works with another [Exec], such as that of the cni
// library. Process groups, inherited files and a root directory are features of
// Process alone.
package delegate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/netconf"
)

// defaultUndoTimeout is used if [Invoker.UndoTimeout] is zero.
const defaultUndoTimeout = 10 * time.Second

// An Invoker runs delegated plugins. The zero Invoker finds no plugins, because
// its Path is empty.
//
// The fields must not change once the Invoker is in use. It is then safe for
// concurrent use if its Exec, Logger, Observer and Stages are.
type Invoker struct {
	// Exec finds and runs executables. Nil means the zero [Process].
	Exec Exec

	// Path lists the directories in which plugins are searched for; the first
	// match wins. Delegated plugins receive it as their CNI_PATH.
	Path []string

	// Env is the environment of delegated plugins, as "key=value". If a key
	// occurs twice the last value counts. The Invoker replaces the six CNI_
	// variables of the specification (section 2, "Parameters"). A plugin's
	// main passes os.Environ(). Nil is an empty environment. See also [ProcessOptions].
	Env []string

	// Refuse, if not nil, returns an error for a plugin that must not be run, such
	// as the caller itself, which would run itself forever. Add and Status ask it
	// about every plugin before they run the first.
	Refuse func(p netconf.Plugin) error

	// Logger receives one debug record per invocation, without its
	// configuration. Nil discards them.
	Logger *slog.Logger

	// Parallel is how many attachments one AddAll, DelAll or Undo works on at
	// the same time. The plugins of one attachment always run one after
	// another. Zero and 1 mean one attachment after another.
	//
	// Values above 1 deviate from the specification (section 3, "Lifecycle &
	// Ordering"): "The container runtime must not invoke parallel operations
	// for the same container [...]. This includes across multiple
	// attachments." Plugins need only tolerate concurrent calls for other
	// containers. Set it only if the plugins in use also tolerate concurrent
	// calls in their container's network namespace.
	//
	// The first attachment is added before all others. The others have no
	// order. If two of them compete for something, such as a route, either may
	// get it. An interface may be removed after the one it was made on.
	//
	// Results and errors are always in the order of the attachments. Exec,
	// Logger and Observer are called by several goroutines at once.
	Parallel int

	// UndoTimeout bounds how long undoing a failed Add takes once the context
	// of the Add has ended. All plugins share it. While the context lives the
	// limit is ten times as long. Zero means ten seconds. If it is
	// negative, Add fails with CNI code 7.
	UndoTimeout time.Duration

	// Observer, if not nil, is called before each invocation, on the goroutine
	// that makes it; see Parallel. It returns the context for the invocation,
	// which must be ctx or derived from it, and a function that is called with
	// nil or an [*Error] when the invocation has ended. Use it to count, to
	// measure and to open spans. [Invoker.Observe] adds one to another.
	Observer func(ctx context.Context, e Event) (context.Context, func(err error))

	// Stages, if not nil, is told of the stages of operations, as Observer is of
	// the invocations in them. [Invoker.ObserveStages] adds one to another.
	Stages Stages
}

// Observe adds an Observer to that of iv, which is called as before: first, so that observer's context
// is derived from its own, and last when the invocation has ended. Call it before iv is in use.
func (iv *Invoker) Observe(observer func(ctx context.Context, e Event) (context.Context, func(err error))) {
	first := iv.Observer
	if first == nil {
		iv.Observer = observer
		return
	}
	iv.Observer = func(ctx context.Context, e Event) (context.Context, func(error)) {
		ctx, last := first(ctx, e)
		ctx, ended := observer(ctx, e)
		return ctx, func(err error) { ended(err); last(err) }
	}
}

// ObserveStages adds stages to iv.Stages, as [Invoker.Observe] adds an Observer.
func (iv *Invoker) ObserveStages(stages Stages) {
	first := iv.Stages
	iv.Stages = func(ctx context.Context, s Stage, e Event) (context.Context, func(error)) {
		ctx, last := first.Begin(ctx, s, e)
		ctx, ended := stages(ctx, s, e)
		return ctx, func(err error) { ended(err); last(err) }
	}
}

// An Exec finds and runs plugins. [Process] runs executables; an Exec of your own may
// call plugins in any other way, or wrap another Exec. The methods are those of the Exec
// in package invoke of the cni library, so an Exec of one is one of the other. An Exec must
// be safe for concurrent use if the [Invoker] that has it is to be.
type Exec interface {
	// FindInPath returns the path of a plugin, given its type and the directories to
	// search. An Exec that runs no files returns whatever its ExecPlugin understands.
	FindInPath(plugin string, paths []string) (string, error)

	// ExecPlugin runs the plugin at a path of FindInPath and returns what it prints to
	// stdout. It gives the plugin stdin and environ, as "key=value".
	ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error)

	// Decode returns the versions in the answer to a VERSION. An [Invoker] does not
	// call it; embed a [version.PluginDecoder].
	Decode(answer []byte) (version.PluginInfo, error)
}

// A Command is what a plugin is asked to do, as in CNI_COMMAND.
type Command string

// The commands that an [Invoker] gives.
const (
	CommandAdd    Command = "ADD"
	CommandCheck  Command = "CHECK"
	CommandDel    Command = "DEL"
	CommandGC     Command = "GC"
	CommandStatus Command = "STATUS"
)

// An Event is one invocation of one plugin.
type Event struct {
	Command     Command
	Plugin      string // the plugin's type, followed by "/" and the name of a step if it has one
	Network     string
	ContainerID string // empty for GC and STATUS
	IfName      string // empty for GC and STATUS
}

// An Attachment names one network and the container interface to apply it to.
type Attachment struct {
	Network     netconf.Network
	ContainerID string
	NetNS       string // path of the network namespace; may be empty for Del
	IfName      string
	Args        string // CNI_ARGS, verbatim

	// CapabilityArgs holds the runtime's capability arguments. Each plugin
	// receives those it declares a capability for.
	CapabilityArgs map[string]json.RawMessage

	// Origin says, in the caller's own terms, why the attachment exists, such
	// as which object of a cluster asked for it. It is any JSON value, or nil.
	// This package ignores it, and plugins never see it. Package lifecycle
	// records it, without the white space between its tokens.
	Origin json.RawMessage

	// Files are absolute paths of files that exist for this attachment only, such
	// as one in which plugins leave something. This package ignores them. Package
	// lifecycle records them, and removes them when the attachment is detached.
	Files []string
}

// Attached is an attachment that has been added, or was about to be added, with
// its result if there is one. Check and Del need it, so a plugin keeps it
// between invocations.
type Attached struct {
	Attachment

	// Result is what the last plugin that succeeded has printed. If that had
	// no cniVersion it has been added. Nil means that no plugin is known to
	// have succeeded.
	Result json.RawMessage

	// Added says that every plugin has succeeded, so that Result is final.
	// Check and Del ignore it.
	Added bool

	// Gone lists the plugins that have nothing in the container, because they
	// have not run or their DEL has succeeded. Each is an index into the
	// network's plugins, in ascending order. Del does not run them. Nil means
	// that every plugin may have something in the container.
	Gone []int
}

// ParsedResult returns the result in the version in which it was printed. Without a
// result, and when it cannot be decoded, ParsedResult fails with [ErrResult].
func (a Attached) ParsedResult() (types.Result, error) {
	if a.Result == nil {
		return nil, a.fail(CommandAdd, &markedError{errors.New("no result"), ErrResult})
	}
	r, err := decodeResult(a.Result)
	if err != nil {
		return nil, a.fail(CommandAdd, fmt.Errorf("%w: %w", ErrResult, err))
	}
	return r, nil
}

// PrintTo writes the result to w as the answer to an ADD, in one write. A
// result of another version than cniVersion is converted first. An empty
// cniVersion means the version of the result.
//
// PrintTo fails as ParsedResult does. It fails with CNI code 1 when the version cannot
// express the result, and with code 5 when w fails. The error is an
// [*Error].
func (a Attached) PrintTo(w io.Writer, cniVersion string) error {
	r, err := a.ParsedResult()
	if err != nil {
		return err
	}
	text := a.Result
	if cniVersion != "" && r.Version() != cniVersion {
		if text, err = convert(r, cniVersion); err != nil {
			return a.fail(CommandAdd, types.NewError(types.ErrIncompatibleCNIVersion, "result cannot be expressed in version "+cniVersion, err.Error()))
		}
	}
	if _, err := w.Write(slices.Concat(text, []byte("\n"))); err != nil {
		return a.fail(CommandAdd, fault.With(types.ErrIOFailure, fmt.Errorf("cannot print the result: %w", err)))
	}
	return nil
}

// refused asks iv.Refuse about p.
func (iv *Invoker) refused(p netconf.Plugin) error {
	if iv.Refuse == nil {
		return nil
	}
	return iv.Refuse(p)
}

func (iv *Invoker) exec() Exec {
	if iv.Exec != nil {
		return iv.Exec
	}
	return &Process{}
}
