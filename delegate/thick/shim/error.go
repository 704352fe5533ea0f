package shim

import (
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/status"
)

var (
	// ErrAway means that there is no daemon: nothing was sent. Its CNI code is
	// 11.
	ErrAway error = &condition{"no daemon", types.ErrTryAgainLater}

	// ErrLost means that the daemon went away before it had answered: what was
	// asked for may have been done, in part or all of it. Its CNI code is 11.
	ErrLost error = &condition{"the daemon went away without an answer", types.ErrTryAgainLater}

	errBusy      error = &condition{"the daemon does not accept", types.ErrTryAgainLater}
	errSocket    error = &condition{"the socket cannot be used", types.ErrIOFailure}
	errMalformed error = &condition{"what answers is not the daemon", types.ErrDecodingFailure}
	errResult    error = &condition{"the daemon's answer holds no result", types.ErrDecodingFailure}
	errTooLarge  error = &condition{"too large a request", types.ErrDecodingFailure}
	errConfig    error = &condition{"the configuration is not a JSON object", types.ErrDecodingFailure}
	errCommand   error = &condition{"unknown command", types.ErrInvalidEnvironmentVariables}
	errNoStdout  error = &condition{"there is nowhere to print the result", types.ErrInternal}
)

// A condition is a cause with its CNI code.
type condition struct {
	text string
	code uint
}

func (c *condition) Error() string { return c.text }
func (c *condition) CNICode() uint { return c.code }

// Answers to a STATUS: ADD cannot be served, and containers suffer as well.
const (
	codeNotReady uint = 50
	codeLimited  uint = 51
)

// An Error is a command that got no answer, or none that is of use. It holds
// nothing of the configuration. It is not changed once returned, so goroutines
// may share it.
type Error struct {
	Command     string // "ADD", for instance; "INFO" for [Client.Info]
	ContainerID string // empty where a command is about none, as IfName
	IfName      string
	Socket      string
	Err         error
}

// Error returns "shim: COMMAND which over socket: why".
func (e *Error) Error() string {
	which := ""
	if e.ContainerID != "" {
		which = fmt.Sprintf(" %q (%s)", e.ContainerID, e.IfName)
	}
	return fmt.Sprintf("shim: %s%s over %s: %v", e.Command, which, e.Socket, e.Err)
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// CNICode returns the CNI error code for e: 11 where asking again may help, 6
// for what cannot be understood, 5 for what cannot be read or written, 4 for an
// unknown command, 1 for a result that the wanted version cannot express, and
// 999 otherwise. For STATUS it is 50 in place of 11, 6 and 5.
func (e *Error) CNICode() uint {
	code := status.Code(e.Err)
	switch code {
	case types.ErrTryAgainLater, types.ErrDecodingFailure, types.ErrIOFailure:
		if e.Command == "STATUS" {
			return codeNotReady
		}
	}
	return code
}
