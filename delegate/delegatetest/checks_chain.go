package delegatetest

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// before returns the result of a plugin that runs before others in a chain.
func before() types.Result {
	return &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{{Name: "before0"}},
		IPs: []*types100.IPConfig{{
			Interface: types100.Int(0), Address: net.IPNet{IP: net.IPv4(198, 51, 100, 1).To4(), Mask: net.CIDRMask(24, 32)},
		}},
	}
}

func checkChain(ctx context.Context, s *suite) error {
	if !atLeast(s.version, "0.3.0") {
		return &skipError{fmt.Sprintf("chains are not in the versions that the plugin supports, %q", s.versions)}
	}
	_, o, err := s.attached(ctx)
	if err != nil {
		return err
	}
	alone, err := contentOf(o.Result())
	if err != nil {
		return nil //nolint:nilerr // the check "result" is about that
	}
	return onNew(func(ctx context.Context, b *bench, _ Outcome) error { return b.chains(ctx, alone) })(ctx, s)
}

// chains fails unless an ADD with a prevResult prints the content of that, and that of an ADD
// alone where it was.
func (b *bench) chains(ctx context.Context, alone content) error {
	if b.before == nil {
		b.before = before()
	}
	prev, err := contentOf(b.before, nil)
	if err != nil {
		return err
	}
	o := b.call(ctx, Call{Command: "ADD"})
	if err := o.Err(); err != nil {
		return fmt.Errorf("ADD with a prevResult fails: %w", err)
	}
	got, err := contentOf(o.Result())
	if err != nil {
		return fmt.Errorf("ADD with a prevResult: %w", err)
	}
	for _, name := range prev.interfaces {
		if !slices.Contains(got.interfaces, name) {
			return fmt.Errorf("ADD drops the interface %q of prevResult: it prints %s", name, o.Stdout)
		}
	}
	for _, address := range slices.Sorted(maps.Keys(prev.on)) {
		if _, ok := got.on[address]; !ok {
			return fmt.Errorf("ADD drops the address %s of prevResult: it prints %s", address, o.Stdout)
		}
	}
	for _, c := range []content{prev, alone} {
		for _, address := range slices.Sorted(maps.Keys(c.on)) {
			if now, ok := got.on[address]; ok && now != c.on[address] {
				return fmt.Errorf("with a prevResult ADD says that %s is on the interface %q, not on %q: it prints %s", address, now, c.on[address], o.Stdout)
			}
		}
	}
	return nil
}

// A content is the interfaces and addresses of a result.
type content struct {
	interfaces []string
	on         map[string]string // the interface of each address, or ""
}

// contentOf returns the content of r. It fails with err if that is not nil.
func contentOf(r types.Result, err error) (c content, _ error) {
	if err != nil {
		return c, err
	}
	current, err := types100.NewResultFromResult(r)
	if err != nil {
		return c, err
	}
	for _, i := range current.Interfaces {
		c.interfaces = append(c.interfaces, i.Name)
	}
	c.on = make(map[string]string)
	for _, ip := range current.IPs {
		name := ""
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(c.interfaces) {
			name = c.interfaces[*i]
		}
		c.on[ip.Address.String()] = name
	}
	return c, nil
}
