package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/internal/terse"
	"github.com/metacni/metacni/scratch"
)

// ErrAdded means that the attachment has been added already: code 7.
var ErrAdded = fault.New(types.ErrInvalidNetworkConfig, "already added, DEL must come first")

// ErrNotAdded means that the attachment is not recorded, or was not
// completely added: code 7.
var ErrNotAdded = fault.New(types.ErrInvalidNetworkConfig, "not added, or not completely")

// ErrPlan means that a plan cannot be carried out: it is missing or empty,
// it is for another container, it uses an interface name that is in use, or
// it cannot be recorded. Code 7.
var ErrPlan = fault.New(types.ErrInvalidNetworkConfig, "impossible plan")

// ErrAbsent is in the error of a DEL that has failed, if no interface of the attachment can be
// found: the DEL may never succeed. See [Manager.DelTries].
var ErrAbsent = errors.New("its interfaces cannot be found")

// ErrSuperseded is the cause of an ADD's context when a DEL of the same
// attachment cancels the ADD: code 11.
var ErrSuperseded = fault.New(types.ErrTryAgainLater, "cancelled by a DEL of the same attachment")

// errNoList means that GC received no list of valid attachments, and so deletes nothing.
// Container runtimes send the list; "cnitool gc" does not.
var errNoList = fault.New(types.ErrInvalidNetworkConfig, `no list of valid attachments, nothing was deleted: GC needs "cni.dev/valid-attachments", which container runtimes send and cnitool does not`)

// errVanished means that there is no running container to be reconciled.
var errVanished = fault.Reworded("the network namespace of the container is at no known path", ErrNotAdded)

// errNoNetNS refuses a path at which there is something else than a network namespace.
var errNoNetNS = fault.New(types.ErrInvalidNetNS, "what is at the path is no network namespace")

// impossible returns an [ErrPlan] of this text.
func impossible(text string) error { return fault.Reworded(text, ErrPlan) }

// The operations, see [Error].
const (
	opAdd       = "ADD"
	opAttach    = "ATTACH"
	opCheck     = "CHECK"
	opDel       = "DEL"
	opDetach    = "DETACH"
	opGC        = "GC"
	opAdopt     = "ADOPT"
	opRelease   = "RELEASE"
	opSweep     = "SWEEP"
	opReconcile = "RECONCILE"
)

// commandOf returns the command that plugins usually receive for op.
func commandOf(op string) delegate.Command {
	switch op {
	case opAttach:
		return delegate.CommandAdd
	case opDetach, opRelease, opSweep:
		return delegate.CommandDel
	}
	return delegate.Command(op)
}

// An Error is a failed operation on one attachment. Its CNI code is that of its
// cause.
type Error struct {
	Op  string      // the method of [Manager] in capital letters, or "SWEEP"
	Key scratch.Key // for GC, of the network alone or of a stale attachment
	Err error
}

// Error returns the operation, the container, its interface, and the cause, in
// one line: "ADD c1 eth0: why". Of a container ID of 64 hexadecimal digits it
// shows the first 12. What the cause says of the same operation, container and
// interface is left out.
func (e *Error) Error() string {
	where := e.Op
	if k := e.Key; k.ContainerID == "" && k.Network != "" {
		where += fmt.Sprintf(" network %q", k.Network)
	} else {
		where += " " + terse.ID(k.ContainerID) + " " + k.IfName
	}
	return terse.Line(strings.TrimRight(where, " ") + ": " + terse.Within(e.Err, e.retell))
}

// retell leaves out of err, a part of the cause, what e says.
func (e *Error) retell(err error) (string, bool) {
	switch err := err.(type) { //nolint:errorlint // it is one step in the tree
	case *delegate.Error:
		c := *err
		if c.Command == commandOf(e.Op) {
			c.Command = ""
		}
		if c.IfName == e.Key.IfName {
			c.IfName = ""
		}
		if e.Key.ContainerID == "" && c.Network == e.Key.Network {
			c.Network = ""
		}
		return c.Error(), true
	case *scratch.Error:
		c := *err
		if c.Key == e.Key || c.Key == (scratch.Key{ContainerID: e.Key.ContainerID}) {
			c.Key = scratch.Key{}
		}
		return c.Error(), true
	}
	return "", false
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// fail returns the error of op on k, which failed because of err. It returns nil
// if err is nil.
func fail(op string, k scratch.Key, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Key: k, Err: err}
}

// except returns err without the errors in it, joined or single, for which left is true.
func except(err error, left func(error) bool) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var rest []error
		for _, e := range joined.Unwrap() {
			rest = append(rest, except(e, left))
		}
		return errors.Join(rest...)
	}
	if left(err) {
		return nil
	}
	return err
}

// damaged reports whether err is about a record that cannot be read.
func damaged(err error) bool {
	return errors.Is(err, scratch.ErrCorrupt) || errors.Is(err, scratch.ErrVersion)
}

// notThere reports whether err says that there is no record.
func notThere(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// because adds ErrSuperseded to err if a DEL has cancelled ctx.
func because(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, ErrSuperseded) && errors.Is(err, ctx.Err()) && !errors.Is(err, ErrSuperseded) {
		return fmt.Errorf("%w: %w", err, ErrSuperseded)
	}
	return err
}
