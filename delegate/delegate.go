// Package delegate invokes CNI plugins on behalf of another plugin.
//
// The unit is the attachment: one network configuration applied to one
// container interface. A network of a single plugin and one of many are
// invoked alike. An ADD that fails is undone before it is reported; a DEL goes
// on past failures; the CNI error code of the plugin that failed survives, what
// it was given in its configuration does not turn up in an error.
//
// Nothing is read from the process's environment, standard files or working
// directory and nothing is written to them: whatever a delegated plugin sees
// comes from the [Invoker] and the [Attachment].
//
// [Process], which runs the plugins, works on Linux. Elsewhere the package
// builds, and an Invoker works with another Exec, such as the cni library's
// own, without what only Process promises: process groups, files handed down,
// a root directory.
package delegate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/netconf"
)

// DefaultUndoTimeout is what a zero [Invoker.UndoTimeout] means.
const DefaultUndoTimeout = 10 * time.Second

// An Invoker runs delegated plugins. Its fields must not change once it is in
// use; an Invoker is then safe for concurrent use, as far as its Exec, Logger
// and Observer are. The zero Invoker finds no plugins, because its Path is
// empty.
type Invoker struct {
	// Exec finds and runs executables. Nil means the zero [Process].
	Exec invoke.Exec

	// Path lists the directories searched for plugins, first match wins.
	// Delegated plugins receive it as their CNI_PATH.
	Path []string

	// Env is the environment delegated plugins start from, as "key=value";
	// of a key given twice the last counts. The six CNI_ variables of the
	// specification (section 2, "Parameters") are replaced in it. A plugin's
	// main passes os.Environ(). Nil is an empty environment.
	Env []string

	// Self lists plugin types that must not be delegated to: the type under
	// which the runtime knows the calling plugin, so that a configuration
	// that names itself fails, with CNI code 7, and does not fork forever.
	Self []string

	// Logger receives one debug record per invocation, without its
	// configuration. Nil discards them.
	Logger *slog.Logger

	// Parallel is how many attachments of one AddAll, DelAll or Undo are worked
	// on at once. The plugins of each run one after another all the same. Zero
	// and 1 mean one attachment after another.
	//
	// Values above 1 deviate from the specification (section 3, "Lifecycle &
	// Ordering"): "The container runtime must not invoke parallel operations
	// for the same container [...]. This includes across multiple
	// attachments." Plugins need only tolerate concurrent calls for other
	// containers. Set it only if the plugins in use also tolerate concurrent
	// calls in their container's network namespace. The first attachment is
	// added before all others. Beyond that there is no order: any of the others
	// may get what they compete for, such as a route, and an interface may be
	// removed after the one it was made on.
	//
	// Results and errors are in the order of the attachments, whichever is
	// faster. Exec, Logger and Observer are then called by several goroutines
	// at once.
	Parallel int

	// UndoTimeout bounds how long undoing a failed Add goes on once the
	// context of the Add has ended. All plugins share it. Under a context
	// that lives, undoing has ten times as long. Zero means
	// [DefaultUndoTimeout].
	UndoTimeout time.Duration

	// Observer, when not nil, is called before each invocation, on the
	// goroutine that makes it; see Parallel. It returns the context for the
	// invocation, which must be ctx or derived from it, and a function that is
	// called when the invocation has ended, with nil or its [*Error]. So it
	// can count, measure and open spans.
	Observer func(ctx context.Context, e Event) (context.Context, func(err error))
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
	Plugin      string // the plugin's type
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
}

// Attached is an attachment that has been added, or was about to be, with its
// final result if there is one. It is what Check and Del need, and so what a
// plugin keeps between invocations.
type Attached struct {
	Attachment

	// Result is what the last plugin that succeeded printed, completed with
	// a cniVersion where it had none. Nil means that none is known to have
	// succeeded.
	Result json.RawMessage

	// Added says that every plugin has succeeded, so that Result is final.
	// Check and Del take no notice of it.
	Added bool

	// Gone lists the plugins, by their index in the network and in ascending
	// order, that have nothing in the container: they have not run, or their
	// DEL has succeeded. Del does not run them. Nil means that all may have.
	Gone []int
}

// Decode returns the result in the version it was printed in. It fails with
// [ErrResult] when there is none or it cannot be decoded.
func (a Attached) Decode() (types.Result, error) {
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
// result of version cniVersion is written as it is, any other is converted;
// an empty cniVersion means the result's own.
//
// It fails as Decode does, with CNI code 1 when the version cannot express the
// result, and with [ErrPrint] when w fails; the error is an [*Error].
func (a Attached) PrintTo(w io.Writer, cniVersion string) error {
	r, err := a.Decode()
	if err != nil {
		return err
	}
	out := bytes.NewBuffer(bytes.Clone(a.Result))
	if cniVersion != "" && r.Version() != cniVersion {
		out.Reset()
		if r, err = convert(r, cniVersion); err == nil {
			err = r.PrintTo(out)
		}
		if err != nil {
			return a.fail(CommandAdd, types.NewError(types.ErrIncompatibleCNIVersion, "result cannot be expressed in version "+cniVersion, err.Error()))
		}
	}
	out.WriteByte('\n')
	if _, err := w.Write(out.Bytes()); err != nil {
		return a.fail(CommandAdd, fmt.Errorf("%w: %w", ErrPrint, err))
	}
	return nil
}

// fail says that command failed for a because of err, and no plugin of it in
// particular.
func (a Attachment) fail(command Command, err error) error {
	return &Error{Command: command, Network: a.Network.Name(), ContainerID: a.ContainerID, IfName: a.IfName, Err: err}
}

func (iv *Invoker) exec() invoke.Exec {
	if iv.Exec != nil {
		return iv.Exec
	}
	return &Process{}
}

func (iv *Invoker) logger() *slog.Logger {
	if iv.Logger != nil {
		return iv.Logger
	}
	return slog.New(slog.DiscardHandler)
}
