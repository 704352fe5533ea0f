package conform

import (
	"context"
	"errors"
	"fmt"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/printed"
)

// pool is how many addresses a check takes from an IPAM plugin to leave none.
const pool = 64

func checkIPAMResult(_ context.Context, _ *bench, added outcome) error {
	current, err := added.current()
	if err != nil {
		return err
	}
	if len(current.IPs) == 0 {
		return fmt.Errorf("the result has no address: it is %s", printed.Clip(added.Stdout))
	}
	if len(current.Interfaces) > 0 {
		return fmt.Errorf("the result has interfaces: it is %s", printed.Clip(added.Stdout))
	}
	if slices.ContainsFunc(current.IPs, func(ip *types100.IPConfig) bool { return ip.Interface != nil }) {
		return fmt.Errorf("an address of the result is on an interface: it is %s", printed.Clip(added.Stdout))
	}
	return nil
}

// addresses returns the addresses that an ADD printed.
func addresses(added outcome) ([]string, error) {
	r, err := contentOf(added.Result())
	return r.addresses(), err
}

// stated fails if the configuration states the address that ADD gives.
func (b *bench) stated(added outcome) error {
	all, err := addresses(added)
	if err != nil {
		return err
	}
	found := false
	for _, v := range b.conf {
		rewrite(v, func(v any) any {
			found = found || slices.ContainsFunc(all, func(ip string) bool { return v == ip })
			return v
		})
	}
	if found {
		return notRun("the configuration states the address itself: there is no choice between several (Stdin)")
	}
	return nil
}

// A lease is the addresses of a container, and the ADD that gave them.
type lease struct {
	container string
	addresses []string
	added     outcome
}

// take attaches a container.
func (b *bench) take(ctx context.Context, id string) (l lease, err error) {
	l.container = id
	if l.added, err = b.add(ctx, id); err == nil {
		l.addresses, err = addresses(l.added)
	}
	return l, err
}

func checkIPAMUnique(ctx context.Context, b *bench, _ outcome) error {
	first, err := b.take(ctx, "c1")
	if err != nil {
		return err
	}
	if err := b.stated(first.added); err != nil {
		return err
	}
	second, err := b.take(ctx, "c2")
	if err != nil {
		return notRun("the plugin has a single address to give: %v (Stdin)", err)
	}
	if ip := shared([]outcome{first.added, second.added}); ip != "" {
		return fmt.Errorf("the containers c1 and c2 both get %s", ip)
	}
	return nil
}

// exhaust takes addresses until none is left.
func (b *bench) exhaust(ctx context.Context) (all []lease, err error) {
	tooMany := notRun("the plugin has more than %d addresses to give: a configuration with fewer is needed, such as a /28 (Stdin)", pool)
	if b.wide {
		return nil, tooMany
	}
	has := make(map[string]string)
	for i := range pool {
		l, err := b.take(ctx, fmt.Sprint("c", i+1))
		switch {
		case l.added.Status != 0 && i > 0:
			return all, nil
		case err != nil:
			return nil, err
		case len(l.addresses) == 0:
			return nil, fmt.Errorf("the ADD of %s succeeds and gives no address, after %d others", l.container, i)
		}
		if err := b.stated(l.added); err != nil {
			return nil, err
		}
		for _, ip := range l.addresses {
			if other := has[ip]; other != "" {
				return nil, fmt.Errorf("the containers %s and %s both get %s", other, l.container, ip)
			}
			has[ip] = l.container
		}
		all = append(all, l)
	}
	b.wide = true
	return nil, tooMany
}

// checkIPAMRelease wants exactly the address of a container when that is detached and no other is
// left, with CNI_NETNS and without.
func checkIPAMRelease(ctx context.Context, b *bench, _ outcome) error {
	all, err := b.exhaust(ctx)
	if err != nil {
		return err
	}
	old := all[len(all)/2]
	for i, netns := range []string{"", none} {
		del := of(old.container, b.later("DEL", old.added))
		del.NetNS = netns
		what := "DEL"
		if netns == none {
			what = "DEL without CNI_NETNS"
		}
		if err := b.succeeds(ctx, what, del); err != nil {
			return err
		}
		next, err := b.take(ctx, fmt.Sprint("next", i+1))
		if err != nil {
			return fmt.Errorf("no other address is left, and %s does not release %v: %w", what, old.addresses, err)
		}
		if !slices.Equal(next.addresses, old.addresses) {
			return fmt.Errorf("no other address is left, and after %s of the container with %v the next one gets %v", what, old.addresses, next.addresses)
		}
		if more, err := b.take(ctx, "more"); err == nil {
			return fmt.Errorf("no other address is left, and %s of one container releases %v of another", what, more.addresses)
		}
		old = next
	}
	return nil
}

func checkIPAMGC(ctx context.Context, b *bench, _ outcome) error {
	all, err := b.exhaust(ctx)
	if err != nil {
		return err
	}
	if len(all) == 1 {
		return notRun("the plugin has a single address to give (Stdin)")
	}
	valid := all[0]
	if err := b.succeeds(ctx, "GC", b.later("GC", valid.added)); err != nil {
		return err
	}
	for i := range all { // the address of the valid one may not be the first that is free
		again, err := b.take(ctx, fmt.Sprint("next", i+1))
		if err != nil && i == 0 {
			return fmt.Errorf("one container is valid, and GC releases no address of the %d others: %w", len(all)-1, err)
		}
		for _, ip := range again.addresses {
			if slices.Contains(valid.addresses, ip) {
				return fmt.Errorf("GC releases %s, which a valid container has: another one gets it", ip)
			}
		}
	}
	if b.knows("CHECK") && b.failed["check-fresh"] == "" {
		return b.succeeds(ctx, "after GC, CHECK of a valid container", b.later("CHECK", valid.added))
	}
	return nil
}

func checkIPAMFull(ctx context.Context, b *bench, _ outcome) error {
	if _, err := b.exhaust(ctx); err != nil {
		return err
	}
	if b.call(ctx, delegatetest.Invocation{Command: "STATUS"}).Status == 0 {
		return errors.New("STATUS succeeds though no address is left")
	}
	return nil
}
