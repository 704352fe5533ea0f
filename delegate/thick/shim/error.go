package shim

import (
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/internal/terse"
	"github.com/metacni/metacni/status"
)

var (
	// errAway means that no daemon listens: nothing was sent. Its CNI code is 11.
	errAway = fault.New(types.ErrTryAgainLater, "the daemon is not running")

	// errLost means that the daemon went away before it answered: the command
	// may have been done, or a part of it. Its CNI code is 11.
	errLost = fault.New(types.ErrTryAgainLater, "the daemon went away before it answered")

	errBusy       = fault.New(types.ErrTryAgainLater, "the daemon accepts no connection at the moment")
	errSocket     = fault.New(types.ErrIOFailure, "the socket cannot be used")
	errMalformed  = fault.New(types.ErrDecodingFailure, "malformed HTTP response from the daemon")
	errResult     = fault.New(types.ErrDecodingFailure, "no valid result in the daemon's answer")
	errTooLarge   = fault.New(types.ErrDecodingFailure, "the request is too large")
	errConfig     = fault.New(types.ErrDecodingFailure, "the configuration is not a JSON object")
	errCommand    = fault.New(types.ErrInvalidEnvironmentVariables, "unknown command")
	errSocketPath = fault.New(types.ErrInvalidNetworkConfig, "the path of the daemon's socket is not absolute")
	errNoStdout   = fault.New(types.ErrInternal, "the Client has no Stdout for the result")
)

// Codes of STATUS: no ADD can be served; and existing containers are affected too.
const (
	codeNotReady uint = 50
	codeLimited  uint = 51
)

// fail returns err as the error of the command: "ADD c1 eth0 over SOCKET: ERR".
func (k *call) fail(err error) error {
	what := k.command
	if k.request.Env["CNI_CONTAINERID"] != "" {
		what += " " + terse.ID(k.args.ContainerID) + " " + k.args.IfName
	}
	if k.client.Socket != "" {
		what += " over " + k.client.Socket
	}
	switch status.Code(err) {
	case types.ErrTryAgainLater, types.ErrDecodingFailure, types.ErrIOFailure:
		if k.command == "STATUS" {
			err = fault.With(codeNotReady, err)
		}
	}
	return fault.Of(what, "", err)
}
