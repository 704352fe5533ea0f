package lifecycle

import (
	"context"
	"slices"

	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// Check asks the plugins of the attachment k to confirm it, with the recorded
// configuration and results. It fails with [ErrNotAdded] when k is not recorded
// as added, with [scratch.ErrCorrupt] when its record is damaged, and otherwise
// with the [*delegate.Error] of the first plugin that fails. It ignores what an
// interrupted [Manager.Attach] has left.
//
// netns is the path of the network namespace that the runtime passes. Each plugin receives it if
// this is the namespace of the ADD or the latter is not known, or else the recorded path if the
// namespace is there.
func (m *Manager) Check(ctx context.Context, k scratch.Key, netns string) error {
	if m.nothing(k) {
		return fail(opCheck, k, ErrNotAdded)
	}
	return fail(opCheck, k, m.locked(ctx, opCheck, k, func(ctx context.Context, _ *scratch.Lock) error {
		o := m.observe()
		o.given = netns
		r, err := m.added(ctx, k, o)
		if err != nil {
			return err
		}
		r.Value.Delegates = slices.DeleteFunc(r.Value.Delegates, halfDone)
		for _, a := range r.Value.attached(k.ContainerID, o.forPlugin) {
			if err := m.invoker().Check(ctx, a); err != nil {
				return err
			}
		}
		return nil
	}))
}

// Status returns why no ADD can be served: the first reason. It writes a file in Dir,
// syncs and removes it, as an ADD begins by writing a record; if that fails the error is
// a [*scratch.Error]. Then it asks every plugin of nets, in order; their error is a
// [*delegate.Error]. Without a Dir it only asks the plugins.
func (m *Manager) Status(ctx context.Context, nets []netconf.Network) error {
	if m.Dir != "" {
		dir, err := durable.MakeDir(m.Dir, nil)
		if err == nil {
			err = dir.TryWrite()
			dir.Close()
		}
		if err != nil {
			return &scratch.Error{Op: "write", Path: m.Dir, Err: err}
		}
	}
	for _, n := range nets {
		if err := m.invoker().Status(ctx, n); err != nil {
			return err
		}
	}
	return nil
}
