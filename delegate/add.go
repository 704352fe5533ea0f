package delegate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/netconf"
)

// Add applies a to its container and returns it with the final result.
//
// Add finds every executable before it runs the first plugin. A plugin may fail
// or print something that is not a result, and ctx may end. Add then runs the DEL
// of that plugin and of those before it, last first, and returns an [*Error]; see
// [Invoker.Undo]. It does not run the DEL of a plugin that could not be started.
// If undoing fails as well the error is [ErrNotUndone] too, and Add returns what is
// left: keep it for Del.
//
// The plugin that failed is undone as well. If it failed because the container
// already has an interface of that name, its DEL may remove that interface. So
// choose a name that is free, see package ifname. The Manager of package lifecycle
// checks the names itself.
func (iv *Invoker) Add(ctx context.Context, a Attachment) (Attached, error) {
	done, err := iv.AddAll(ctx, []Attachment{a})
	if len(done) == 0 {
		return Attached{Attachment: a}, err
	}
	return done[0], err
}

// AddAll adds each of as in order, as Add does. It is all or nothing: when one
// fails, it and those before it are undone. When undoing fails the error is
// [ErrNotUndone] too, and AddAll returns the attachments that are left, for a later
// DelAll.
//
// With [Invoker.Parallel] the first is added alone. Then the others are begun in
// order. When one fails, those after it are ended and no other is begun, and
// those before it go on. The error is that of the first in order that fails, as
// it is without Parallel. Then everything that ran is undone; see
// [Invoker.DelAll].
//
// Each note is called for every plugin of as[i] that has been added, with the a whose Result
// that plugin printed, and for every plugin that has been undone, which is in a.Gone. The call
// comes before the next plugin of the attachment runs: a caller who writes a down can clean up
// wherever the process dies. Calls do not overlap. If a note of an added plugin fails, AddAll
// fails, and undoes everything.
func (iv *Invoker) AddAll(ctx context.Context, as []Attachment, note ...func(i int, a Attached) error) ([]Attached, error) {
	if iv.UndoTimeout < 0 {
		return nil, Attachment{}.fail(CommandAdd, types.NewError(types.ErrInvalidNetworkConfig, "the UndoTimeout is negative", ""))
	}
	found := make([][]string, len(as))
	for i, a := range as {
		paths, err := iv.prepare(a)
		if err != nil {
			return nil, err
		}
		found[i] = paths
	}
	tell := oneAtATime(note)
	done := make([]Attached, len(as))
	errs := make([]error, len(as))
	ctxs := make([]context.Context, len(as)+1)
	ends := make([]context.CancelCauseFunc, len(as)+1)
	ctxs[0], ends[0] = context.WithCancelCause(ctx)
	defer ends[0](nil)
	for i := range as {
		ctxs[i+1], ends[i+1] = context.WithCancelCause(ctxs[i]) //nolint:fatcontext // each ends with those before it
	}
	add := func(i int) { //nolint:contextcheck // each has one made from ctx
		done[i].Attachment = as[i]
		errs[i] = iv.chain(ctxs[i], i, &done[i], found[i], tell)
		if errs[i] != nil {
			ends[i+1](errEarlier)
		}
	}
	if len(as) > 0 {
		add(0)
	}
	iv.atOnce(len(as)-1, func(k int) { add(1 + k) })
	first := cmp.Or(errs...) // it has not been ended because of another
	if first == nil {
		return done, nil
	}
	err := iv.undo(ctx, done, first, tell)
	var left []Attached
	for _, a := range done {
		if a.left() > 0 {
			left = append(left, a)
		}
	}
	return left, err
}

// prepare finds the executables of a's plugins. It refuses what must not or
// cannot run.
func (iv *Invoker) prepare(a Attachment) ([]string, error) {
	if err := a.valid(CommandAdd); err != nil {
		return nil, err
	}
	if err := a.Network.CheckRequest(netconf.Request{CapabilityArgs: a.CapabilityArgs}); err != nil {
		return nil, a.fail(CommandAdd, err)
	}
	plugins := a.Network.Plugins()
	paths := make([]string, len(plugins))
	for i, p := range plugins {
		err := iv.refused(p)
		if err == nil {
			paths[i], err = iv.find(p.Type())
		}
		if err != nil {
			return nil, a.invocation(CommandAdd, i, nil).fail(err)
		}
	}
	return paths, nil
}

// chain runs the ADD of each plugin of a, the i'th attachment, in order. It
// keeps the last result in a. When it fails it notes in a which plugins have not
// run.
func (iv *Invoker) chain(ctx context.Context, i int, a *Attached, paths []string, tell note) (err error) {
	defer catch(&err) // then all of them may have run
	var prev json.RawMessage
	for p, path := range paths {
		out, err := iv.run(ctx, a.invocation(CommandAdd, p, prev), path)
		switch {
		case errors.Is(err, ErrNotRun):
			*a = a.without(p)
			return err
		case err == nil:
			prev, a.Result, a.Added = out, out, p == len(paths)-1
			err = tell(i, *a)
		}
		if err != nil {
			*a = a.without(p + 1)
			return err
		}
	}
	return nil
}
