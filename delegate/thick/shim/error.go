package shim

import (
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/terse"
	"github.com/metacni/metacni/status"
)

var (
	// ErrAway means that no daemon listens: nothing was sent. Its CNI code is 11.
	ErrAway error = &condition{"the daemon is not running", types.ErrTryAgainLater}

	// ErrLost means that the daemon went away before it answered: the command
	// may have been done, or a part of it. Its CNI code is 11.
	ErrLost error = &condition{"the daemon went away before it answered", types.ErrTryAgainLater}

	errBusy      error = &condition{"the daemon accepts no connection at the moment", types.ErrTryAgainLater}
	errSocket    error = &condition{"the socket cannot be used", types.ErrIOFailure}
	errMalformed error = &condition{"malformed HTTP response from the daemon", types.ErrDecodingFailure}
	errResult    error = &condition{"no valid result in the daemon's answer", types.ErrDecodingFailure}
	errTooLarge  error = &condition{"the request is too large", types.ErrDecodingFailure}
	errConfig    error = &condition{"the configuration is not a JSON object", types.ErrDecodingFailure}
	errCommand   error = &condition{"unknown command", types.ErrInvalidEnvironmentVariables}
	errNoSocket  error = &condition{"the Client has no Socket, and the configuration no daemonSocketDir", types.ErrInvalidNetworkConfig}
	errNoStdout  error = &condition{"the Client has no Stdout for the result", types.ErrInternal}
)

// A condition is a cause with a CNI code.
type condition struct {
	text string
	code uint
}

func (c *condition) Error() string { return c.text }
func (c *condition) CNICode() uint { return c.code }

// Codes of STATUS: no ADD can be served; and existing containers are affected too.
const (
	codeNotReady uint = 50
	codeLimited  uint = 51
)

// An Error is a command without a valid answer. It quotes nothing of the
// configuration. It does not change once returned, so goroutines may share it.
type Error struct {
	Command     string // "ADD", for instance; "INFO" for [Client.Info]
	ContainerID string // empty for a command that has none, and so is IfName
	IfName      string
	Socket      string
	Err         error
}

// Error returns "ADD c1 eth0 over socket: why". The container ID is shortened.
func (e *Error) Error() string {
	which := ""
	if e.ContainerID != "" {
		which = " " + terse.ID(e.ContainerID) + " " + e.IfName
	}
	if e.Socket != "" {
		which += " over " + e.Socket
	}
	return fmt.Sprintf("%s%s: %v", e.Command, which, e.Err)
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// CNICode returns the CNI error code for e:
//   - 11 if the command may succeed later,
//   - 6 for a message that cannot be decoded,
//   - 7 without a socket,
//   - 5 for an I/O failure,
//   - 4 for an unknown command,
//   - 1 for a result that the wanted version cannot express,
//   - 999 otherwise.
//
// For STATUS, 50 takes the place of 11, 6 and 5.
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
