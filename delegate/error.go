package delegate

import (
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/internal/terse"
	"github.com/metacni/metacni/netconf"
)

var (
	// ErrPluginNotFound means that no directory of the path holds the
	// plugin: an invalid network configuration, CNI code 7.
	ErrPluginNotFound = fault.New(types.ErrInvalidNetworkConfig, "plugin not found")

	// ErrNotRun means that a plugin was not even started, so that it has
	// nothing to undo. An Exec that knows this returns an error in which
	// errors.Is finds ErrNotRun, and which repeats nothing of the plugin's
	// configuration. It has no code of its own.
	ErrNotRun = errors.New("plugin was not run")

	// ErrResult means that a plugin exited successfully without printing one
	// result that can be decoded: CNI code 6.
	ErrResult = fault.New(types.ErrDecodingFailure, "cannot decode result")

	// ErrNotUndone means that an Add failed and that undoing it failed as well.
	// Something may have been left behind: keep what Del needs, and let the
	// runtime's DEL try again. The text of the error has the cause first. In the
	// error, errors.Is and errors.As find the cause and what could not be undone.
	// Its CNI code is that of the cause, 11 (try again later) when the cause is the
	// end of a context, and 999 when it has none. What went wrong in undoing does
	// not matter.
	ErrNotUndone = fault.ErrNotUndone
)

// An Error is one failed invocation, or the reason why a network or an attachment
// is refused before any plugin runs: then Plugin may be empty. If the plugin printed
// an error object, Err is or wraps its [*types.Error]. If a context ended the
// invocation, errors.Is finds the error of the context.
type Error struct {
	Event
	Err error
}

// Error names the command, the network, the interface and the plugin, and then
// the cause, in one line. It leaves out fields that are empty. The words of
// Process and Invoker hold no string or number of the plugin's configuration. A
// plugin that printed an error object with a code chose its own words: in these the
// configuration as a whole is hidden, and each string and number under a key with
// auth, bearer, cred, key, pass, psk, pwd, secret or token in its name, in any case.
// Values of less than six bytes are not hidden, nor are those of name, type and
// cniVersion.
func (e *Error) Error() string {
	where := string(e.Command)
	if e.Network != "" {
		where += fmt.Sprintf(" network %q", e.Network)
	}
	if e.IfName != "" {
		where += " (" + e.IfName + ")"
	}
	if e.Plugin != "" {
		where += fmt.Sprintf(": plugin %q", e.Plugin)
	}
	return terse.Line(strings.TrimLeft(where+": ", " :") + terse.Within(e.Err, e.retell))
}

// retell leaves the network out of what is wrong with its configuration: e
// names it, or the error around e does.
func (e *Error) retell(err error) (string, bool) {
	conf, ok := err.(*netconf.Error) //nolint:errorlint // it is one step in the tree
	if !ok || e.Network != "" && e.Network != conf.Network {
		return "", false
	}
	c := *conf
	c.Network = ""
	return c.Error(), true
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// CNICode returns the CNI error code for e: 11 (try again later) when its context
// ended, else the plugin's own, else the code of the sentinel in it, and 0 when
// nothing has a code.
func (e *Error) CNICode() uint {
	if fault.Ended(e.Err) {
		return types.ErrTryAgainLater
	}
	return fault.Code(e.Err, types.ErrUnknown)
}

// A markedError is err, in which errors.Is also finds mark. Its text is that of
// err: it need not say what the mark says.
type markedError struct{ err, mark error }

func (e *markedError) Error() string   { return e.err.Error() }
func (e *markedError) Unwrap() []error { return []error{e.err, e.mark} }

// notRun marks err as the reason why a plugin was not even started.
func notRun(err error) error { return &markedError{err, ErrNotRun} }
