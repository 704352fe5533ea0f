package conform

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/delegate/conform/internal/realhost"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/printed"
)

func checkInterface(ctx context.Context, b *bench, added outcome) error {
	current, err := added.current()
	if err != nil {
		return err
	}
	c := b.c1
	addresses, ok, err := b.node.Addresses(c.path, b.ifname)
	if err != nil {
		return b.own(err)
	}
	if !ok {
		return fmt.Errorf("ADD succeeds, and the container has no interface %s", b.ifname)
	}
	at := slices.IndexFunc(current.Interfaces, func(i *types100.Interface) bool { return i.Name == b.ifname && i.Sandbox == c.path })
	if at < 0 {
		return fmt.Errorf("the result has no interface with the name %s and the sandbox of the container, %s: it is %s", b.ifname, c.path, printed.Clip(added.Stdout))
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

func checkAddExists(ctx context.Context, b *bench, _ outcome) error {
	if b.ifname == loopback {
		return notRun("each container has the interface %s", loopback)
	}
	c := b.c1
	if _, err := b.node.Attach(c.path, b.ifname); err != nil {
		return b.own(err)
	}
	if b.call(ctx, delegatetest.Invocation{Command: "ADD"}).Status == 0 {
		return fmt.Errorf("ADD succeeds in a container that has an interface %s already", b.ifname)
	}
	if !c.has(b.ifname) {
		return fmt.Errorf("an ADD that fails removes the interface %s, which was there before", b.ifname)
	}
	return nil
}

func checkDelGone(ctx context.Context, b *bench, added outcome) error {
	if err := b.node.Remove(b.c1.path); err != nil {
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
func checkChangeGone(ctx context.Context, b *bench, _ outcome) error {
	if b.node == nil {
		return notRun(needsContainers)
	}
	before := b.inside()
	o, err := b.add(ctx, "c1")
	if err != nil {
		return err
	}
	host, inside := b.state(ctx), b.inside()
	gone := func() []string { return append(host.Since(b.state(ctx)), inside.Undone(before, b.inside())...) }
	b.call(ctx, b.later("DEL", o))
	all := gone()
	if len(all) == 0 {
		if err := b.node.Restore(b.c1.path, b.ifname, before); err != nil {
			return b.own(err)
		}
		all = gone()
	}
	if len(all) == 0 {
		return notRun("its ADD makes and changes nothing on the host and in the container")
	}
	return b.notices(ctx, o, fmt.Sprintf("this is gone: %s", list(all)))
}

// inside returns the state of c1, a container with a network namespace.
func (b *bench) inside() realhost.State {
	s, err := b.node.Inside(b.c1.path)
	_ = b.own(err) // the check counts as not made
	return s
}

func checkMadeGone(ctx context.Context, b *bench, added outcome) error {
	switch b.kind.Name {
	case kindMain:
		if b.node == nil {
			return notRun(needsContainers)
		}
		if b.ifname == loopback {
			return notRun("nothing can remove the interface %s", loopback)
		}
		if has, _ := addresses(added); len(has) > 0 {
			if err := b.node.Restore(b.c1.path, b.ifname, nil); err != nil {
				return b.own(err)
			}
			if err := b.notices(ctx, added, "the interface is another one, with another address"); err != nil {
				return err
			}
		}
		if err := b.node.Detach(b.c1.path, b.ifname); err != nil {
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
func (b *bench) notices(ctx context.Context, added outcome, gone string) error {
	if b.call(ctx, b.later("CHECK", added)).Status == 0 {
		return errors.New("CHECK succeeds though " + gone)
	}
	return nil
}

// checkGCStale has c1, which is valid, and c2, whose namespace is gone.
func checkGCStale(ctx context.Context, b *bench, added outcome) error {
	only, had := b.state(ctx), b.c1.has(b.ifname)
	if b.call(ctx, delegatetest.Invocation{Command: "ADD", ContainerID: "c2"}).Status != 0 {
		return errSingle // or the check "concurrent" is about that
	}
	c2, err := b.container("c2")
	if err != nil {
		return err
	}
	if err := b.node.Remove(c2.path); err != nil {
		return b.own(err)
	}
	if err := b.succeeds(ctx, "GC", b.later("GC", added)); err != nil {
		return err
	}
	if lost := only.Since(b.state(ctx)); len(lost) > 0 {
		return fmt.Errorf("GC removes from the host what a valid container has: %s", list(lost))
	}
	if had && !b.c1.has(b.ifname) {
		return fmt.Errorf("GC removes the interface %s of a valid container", b.ifname)
	}
	return b.noMore(ctx, "GC, after a container is gone,", only)
}
