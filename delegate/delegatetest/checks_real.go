package delegatetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/internal/realhost"
)

func checkInterface(ctx context.Context, b *bench, added Outcome) error {
	current, err := added.current()
	if err != nil {
		return err
	}
	c, err := b.container("c1")
	if err != nil {
		return err
	}
	addresses, ok, err := c.real.Interface(b.ifname)
	if err != nil {
		return b.own(err)
	}
	if !ok {
		return fmt.Errorf("ADD succeeds, and the container has no interface %s", b.ifname)
	}
	at := slices.IndexFunc(current.Interfaces, func(i *types100.Interface) bool { return i.Name == b.ifname && i.Sandbox == c.path })
	if at < 0 {
		return fmt.Errorf("the result has no interface with the name %s and the sandbox of the container, %s: it is %s", b.ifname, c.path, clip(added.Stdout))
	}
	for _, ip := range current.IPs {
		if ip.Interface == nil || *ip.Interface != at {
			continue
		}
		if !slices.ContainsFunc(addresses, func(p netip.Prefix) bool { return ip.Address.IP.Equal(p.Addr().AsSlice()) }) {
			return fmt.Errorf("the result has the address %v on %s, and the interface has %v", &ip.Address, b.ifname, addresses)
		}
	}
	return nil
}

func checkAddExists(ctx context.Context, b *bench, _ Outcome) error {
	if b.ifname == loopback {
		return notRun("each container has the interface %s", loopback)
	}
	c, err := b.container("c1")
	if err != nil {
		return err
	}
	if _, err := c.real.Attach(b.ifname); err != nil {
		return b.own(err)
	}
	if b.call(ctx, Call{Command: "ADD"}).Status == 0 {
		return fmt.Errorf("ADD succeeds in a container that has an interface %s already", b.ifname)
	}
	if !c.has(b.ifname) {
		return fmt.Errorf("an ADD that fails removes the interface %s, which was there before", b.ifname)
	}
	return nil
}

func checkDelGone(ctx context.Context, b *bench, added Outcome) error {
	c, err := b.container("c1")
	if err != nil {
		return err
	}
	if err := c.real.Gone(); err != nil {
		return b.own(err)
	}
	return b.deleted(ctx, "the DEL of a container whose namespace is gone", b.later("DEL", added))
}

// checkGone checks that CHECK fails when the interface is gone, or the address, or what a chained
// plugin has made or changed.
func checkGone(ctx context.Context, s *suite) error {
	if s.kind.Name == kindChained {
		return onNew(checkChangeGone)(ctx, s)
	}
	return onAttached(checkMadeGone)(ctx, s)
}

// checkChangeGone looks at the host and at the container. What DEL does not undo there, it undoes
// itself.
func checkChangeGone(ctx context.Context, b *bench, _ Outcome) error {
	if b.node == nil {
		return notRun(needsContainers)
	}
	c, err := b.container("c1")
	if err != nil {
		return err
	}
	before, err := c.real.State()
	if err != nil {
		return b.own(err)
	}
	o := b.call(ctx, Call{Command: "ADD"})
	if err := o.failure(); err != nil {
		return fmt.Errorf("ADD fails: %w", err)
	}
	host, err := b.state(ctx)
	inside, ierr := c.real.State()
	if err = cmp.Or(err, ierr); err != nil {
		return b.own(err)
	}
	b.call(ctx, b.later("DEL", o))
	var gone []string
	for _, undo := range []func() error{
		func() error { return nil },
		func() error { return c.real.Restore(b.ifname, before) },
	} {
		err := undo()
		now, herr := b.state(ctx)
		in, ierr := c.real.State()
		if err = cmp.Or(err, herr, ierr); err != nil {
			return b.own(err)
		}
		if gone = append(host.Since(now), inside.Undone(before, in)...); len(gone) > 0 {
			break
		}
	}
	if len(gone) == 0 {
		return notRun("its ADD makes and changes nothing on the host and in the container")
	}
	return b.notices(ctx, o, fmt.Sprintf("this is gone: %s", list(gone)))
}

func checkMadeGone(ctx context.Context, b *bench, added Outcome) error {
	switch b.kind.Name {
	case kindMain:
		if b.node == nil {
			return notRun(needsContainers)
		}
		if b.ifname == loopback {
			return notRun("nothing can remove the interface %s", loopback)
		}
		c, err := b.container("c1")
		if err != nil {
			return err
		}
		has, err := addresses(added)
		if err != nil {
			return err
		}
		if len(has) > 0 {
			if err := c.real.Restore(b.ifname, realhost.State{}); err != nil {
				return b.own(err)
			}
			if err := b.notices(ctx, added, "the interface is another one, with another address"); err != nil {
				return err
			}
		}
		if err := c.real.Remove(b.ifname); err != nil {
			return b.own(err)
		}
		return b.notices(ctx, added, "the interface is gone")
	case kindIPAM:
		if err := b.stated(added); err != nil {
			return err
		}
		b.call(ctx, b.later("DEL", added))
		return b.notices(ctx, added, "DEL has released the address")
	}
	return nil
}

// notices fails if CHECK succeeds.
func (b *bench) notices(ctx context.Context, added Outcome, gone string) error {
	if b.call(ctx, b.later("CHECK", added)).Status == 0 {
		return errors.New("CHECK succeeds though " + gone)
	}
	return nil
}

// checkGCStale has c1, which is valid, and c2, whose namespace is gone.
func checkGCStale(ctx context.Context, b *bench, added Outcome) error {
	only, err := b.state(ctx)
	if err != nil {
		return err
	}
	c1, err := b.container("c1")
	if err != nil {
		return err
	}
	had := c1.has(b.ifname)
	if b.call(ctx, Call{Command: "ADD", ContainerID: "c2"}).Status != 0 {
		return errSingle // or the check "concurrent" is about that
	}
	c2, err := b.container("c2")
	if err != nil {
		return err
	}
	if err := c2.real.Gone(); err != nil {
		return b.own(err)
	}
	if err := b.call(ctx, b.later("GC", added)).failure(); err != nil {
		return fmt.Errorf("GC fails: %w", err)
	}
	now, err := b.state(ctx)
	if err != nil {
		return err
	}
	if lost := only.Since(now); len(lost) > 0 {
		return fmt.Errorf("GC removes from the host what a valid container has: %s", list(lost))
	}
	if had && !c1.has(b.ifname) {
		return fmt.Errorf("GC removes the interface %s of a valid container", b.ifname)
	}
	return b.noMore(ctx, "GC, after a container is gone,", only)
}
