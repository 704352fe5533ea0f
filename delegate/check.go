package delegate

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/netconf"
)

// Check asks every plugin of a to confirm that the attachment is as its result
// says. It stops at the first plugin that fails; the error is an [*Error].
// Without a result, or with one that the network's version cannot express, it
// fails with [ErrResult].
//
// If the network has disableCheck, or is older than CHECK (CNI 0.4.0), Check runs
// nothing and returns nil.
func (iv *Invoker) Check(ctx context.Context, a Attached) error {
	if err := a.valid(CommandCheck); err != nil {
		return err
	}
	if a.Network.DisableCheck() || !atLeast(a.Network.CNIVersion(), "0.4.0") {
		return nil
	}
	prev := a.prevResult()
	if prev == nil {
		return a.fail(CommandCheck, &markedError{errors.New("no result to compare with"), ErrResult})
	}
	return iv.ask(ctx, CommandCheck, a.Attachment, prev)
}

// Status asks every plugin of n whether it can service an Add. It stops at the
// first that cannot; the error is an [*Error]. Networks older than CNI 1.1 are
// always ready.
func (iv *Invoker) Status(ctx context.Context, n netconf.Network) error {
	a := Attachment{Network: n}
	if err := a.valid(CommandStatus); err != nil {
		return err
	}
	if !atLeast(n.CNIVersion(), "1.1.0") {
		return nil
	}
	for i, p := range n.Plugins() {
		if err := iv.refused(p); err != nil {
			return a.invocation(CommandStatus, i, nil).fail(err)
		}
	}
	return iv.ask(ctx, CommandStatus, a, nil)
}

// ask gives command to the plugins of a in order, and stops at the first that fails.
func (iv *Invoker) ask(ctx context.Context, command Command, a Attachment, prev json.RawMessage) error {
	for i := range a.Network.Plugins() {
		if err := iv.findAndRun(ctx, a.invocation(command, i, prev)); err != nil {
			return err
		}
	}
	return nil
}

// GC tells every plugin of n which attachments to the network are still valid.
// It goes on past plugins that fail and joins their errors; each is an [*Error].
// An empty or nil valid means that no attachment is valid.
//
// If the network has disableGC, or is older than CNI 1.1, GC runs nothing. Remove
// its stale attachments with Del.
func (iv *Invoker) GC(ctx context.Context, n netconf.Network, valid []types.GCAttachment) error {
	a := Attachment{Network: n}
	if err := a.valid(CommandGC); err != nil {
		return err
	}
	if n.DisableGC() || !atLeast(n.CNIVersion(), "1.1.0") {
		return nil
	}
	if valid == nil {
		valid = []types.GCAttachment{}
	}
	var errs []error
	for i := range n.Plugins() {
		in := a.invocation(CommandGC, i, nil)
		in.request.ValidAttachments = valid
		errs = append(errs, iv.findAndRun(ctx, in)) // nil ones are dropped by Join
	}
	return errors.Join(errs...)
}
