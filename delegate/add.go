package delegate

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/metacni/metacni/netconf"
)

// Add applies a to its container and returns it with the final result.
//
// Every executable is found, and every request configuration made, before the
// first plugin is run. When a plugin fails, or prints something that is not a
// result, or ctx ends, that plugin and those before it are asked to undo what
// they did, last first, before Add returns; see [Invoker.Undo]. A plugin that
// could not even be started has done nothing, and is not asked. The error is an
// [*Error]; if undoing failed too, an [*UndoError] around it.
func (iv *Invoker) Add(ctx context.Context, a Attachment) (Attached, error) {
	done, err := iv.AddAll(ctx, []Attachment{a})
	if err != nil {
		return Attached{Attachment: a}, err
	}
	return done[0], nil
}

// AddAll does as Add does for each of as in order. When one fails, it and
// those before it are undone, and no attachment is left: it is all or nothing.
//
// With [Invoker.Parallel] the first is added alone, and then the others, begun in
// order. When one fails those after it are ended and none is begun; those before
// it go on, as they would have been added first. So the error is that of the
// first in order that fails, whichever is faster: the same as without Parallel,
// and never that another has failed. Then all that ran is undone; see
// [Invoker.DelAll].
func (iv *Invoker) AddAll(ctx context.Context, as []Attachment) ([]Attached, error) {
	found := make([][]string, len(as))
	for i, a := range as {
		paths, err := iv.prepare(a)
		if err != nil {
			return nil, err
		}
		found[i] = paths
	}
	done := Intend(as)
	errs := make([]error, len(as))
	ran := make([]removal, len(as))
	ctxs, endFrom := endable(ctx, len(as))
	defer endFrom(0)
	iv.forward(len(as), func(i int) { //nolint:contextcheck // each has one made from ctx
		var plugins int
		plugins, errs[i] = iv.chain(ctxs[i], &done[i], found[i])
		ran[i] = removal{Attached: done[i], plugins: plugins}
		if errs[i] != nil {
			endFrom(i + 1)
		}
	})
	for _, err := range errs {
		if err != nil { // the first has not been ended because of another
			undo := slices.DeleteFunc(ran, func(r removal) bool { return r.plugins == 0 })
			return nil, iv.undo(ctx, undo, err)
		}
	}
	return done, nil
}

// prepare finds the executables of a's plugins, and refuses what must not or
// cannot be run at all.
func (iv *Invoker) prepare(a Attachment) ([]string, error) {
	if err := checkAttachment("ADD", a); err != nil {
		return nil, err
	}
	plugins := a.Network.Plugins()
	paths := make([]string, len(plugins))
	for i, p := range plugins {
		path, err := iv.find(p.Type())
		if err == nil {
			_, err = a.Network.Request(i, netconf.Request{CapabilityArgs: a.CapabilityArgs})
		}
		if err != nil {
			return nil, (&invocation{command: "ADD", Attachment: a, plugin: p.Type()}).fail(err)
		}
		paths[i] = path
	}
	return paths, nil
}

// chain runs the ADD of each plugin of a in order and stores the last result
// in a. It reports how many plugins have run, the failing one included if it
// was started.
func (iv *Invoker) chain(ctx context.Context, a *Attached, paths []string) (ran int, err error) {
	var prev json.RawMessage
	for i, path := range paths {
		out, err := iv.run(ctx, iv.invocation("ADD", a.Attachment, i), path, prev, nil)
		switch {
		case errors.Is(err, ErrNotRun):
			return i, err
		case err != nil:
			return i + 1, err
		}
		prev = out
	}
	a.Result = prev
	return len(paths), nil
}
