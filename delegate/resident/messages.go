package resident

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/creachadair/jrpc2"

	"github.com/metacni/metacni/status"
)

// protocol is the version of the messages.
const protocol = 3

// The methods of the messages.
const (
	methodRegister    = "register"    // host to resident: greeting; answered with hello
	methodRefused     = "refused"     // host to resident: refusal
	methodSynchronize = "synchronize" // host to resident: synchronization
	methodCommand     = "cni"         // host to resident: command; answered with stdout
	methodCancel      = "cancel"      // host to resident, no answer: IDs of calls
	methodRequest     = "request"     // resident to host: Request
	methodLeave       = "leave"       // resident to host, no answer
)

// A greeting asks a process to register.
type greeting struct {
	Version int `json:"version"`
}

// A hello is the registration of a resident.
type hello struct {
	Version int `json:"version"`
	Info
}

// A refusal is why a process may not register.
type refusal struct {
	Reason string `json:"reason"`
}

// A synchronization lists the current attachments of the resident's types.
type synchronization struct {
	Known []Known `json:"known"`
}

// A command is a call of a plugin.
type command struct {
	Type   string            `json:"type"`
	Env    map[string]string `json:"env"`
	Config []byte            `json:"config,omitempty"` // stdin
}

// maxOutput is the size of the stdout of a command, or of its error, in bytes. Encoded
// as base64 it fits in a message.
const maxOutput = maxFromPlugin / 2

// failure returns err as it is sent: an error object of CNI in one of JSON-RPC.
func failure(err error) error {
	if err == nil {
		return nil
	}
	var e *types.Error
	if !errors.As(status.Error(err), &e) {
		e = types.NewError(types.ErrInternal, err.Error(), "")
	}
	if n := len(e.Msg) + len(e.Details); n > maxOutput/2 {
		e = types.NewError(e.Code, fmt.Sprintf("an error of %d bytes is longer than %d", n, maxOutput/2), "")
	}
	return jrpc2.Errorf(jrpc2.InternalError, "%s", e.Msg).WithData(e)
}

// said returns the error object of CNI that the other side has sent, or nil.
func said(err error) *types.Error {
	var answer *jrpc2.Error
	var e types.Error
	if errors.As(err, &answer) && json.Unmarshal(answer.Data, &e) == nil && e.Code != types.ErrUnknown {
		return &e
	}
	return nil
}

// outcome returns what has come of a call that returned err: the error object that the other
// side has sent, or the end of ctx. It is not certain what other errors mean.
func outcome(ctx context.Context, err error) (certain bool, _ error) {
	switch {
	case err == nil:
		return true, nil
	case said(err) != nil:
		return true, said(err)
	case ctx.Err() != nil:
		return true, ended(ctx)
	}
	return false, err
}

func unknownCall(r *jrpc2.Request) error {
	return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("unknown call %.40q", r.Method()), "")
}
