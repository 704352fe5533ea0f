package delegatetest

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// before returns the result of a plugin that runs before others in a chain.
func before() *types100.Result {
	return &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{{Name: "before0"}},
		IPs: []*types100.IPConfig{{
			Interface: types100.Int(0), Address: net.IPNet{IP: net.IPv4(198, 51, 100, 1).To4(), Mask: net.CIDRMask(24, 32)},
			Gateway: net.IPv4(198, 51, 100, 254).To4(),
		}},
		Routes: []*types.Route{{Dst: net.IPNet{IP: net.IPv4(203, 0, 113, 0).To4(), Mask: net.CIDRMask(24, 32)}}},
		DNS:    dns(),
	}
}

// dns returns what a plugin before others says about names.
func dns() types.DNS {
	return types.DNS{Nameservers: []string{"198.51.100.53"}, Domain: "pods.example", Search: []string{"example"}, Options: []string{"ndots:2"}}
}

func checkChain(ctx context.Context, s *suite) error {
	if !atLeast(s.version, "0.3.0") {
		return notRun("chains are not in the versions that the plugin supports, %s", strings.Join(s.versions, ", "))
	}
	b, o, err := s.attached(ctx)
	if err != nil {
		return err
	}
	if s.chained {
		return b.carries(o, content{})
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
	c, err := b.container("c1")
	if err != nil {
		return err
	}
	c.prev = before()
	return b.carries(b.call(ctx, Call{Command: "ADD"}), alone)
}

// carries fails unless the ADD of c1 printed what its prevResult has, and nothing of that or of
// alone in another place. What the plugin has removed from a real container may be missing.
func (b *bench) carries(o Outcome, alone content) error {
	c, err := b.container("c1")
	if err != nil {
		return err
	}
	prev, err := contentOf(c.prev, nil)
	if err != nil {
		return err
	}
	if err := o.failure(); err != nil {
		return fmt.Errorf("ADD with a prevResult fails: %w", err)
	}
	got, err := contentOf(o.Result())
	if err != nil {
		return fmt.Errorf("ADD with a prevResult: %w", err)
	}
	real := b.chained && c.real != nil // and so is what prevResult has
	if name := c.lost(prev, got); real && name != "" {
		return fmt.Errorf("the result of ADD has the interface %q of prevResult, which is no longer in the container: it prints %s", name, clip(o.Stdout))
	}
	for _, name := range prev.interfaces {
		if !slices.Contains(got.interfaces, name) && (!real || prev.inside[name] == "" || c.has(name)) {
			return fmt.Errorf("ADD drops the interface %q of prevResult: it prints %s", name, clip(o.Stdout))
		}
	}
	for _, address := range prev.addresses() {
		if _, ok := got.on[address]; !ok && (!real || c.keeps(b.ifname, address)) {
			return fmt.Errorf("ADD drops the address %s of prevResult: it prints %s", address, clip(o.Stdout))
		}
	}
	for _, address := range prev.addresses() {
		_, has := got.on[address]
		anywhere := net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
		if gateway := prev.gateways[address]; gateway != "" && has && got.gateways[address] == "" && (!real || c.routes(anywhere)) {
			return fmt.Errorf("ADD drops the gateway %s of prevResult: it prints %s", gateway, clip(o.Stdout))
		}
	}
	for _, r := range prev.routes {
		if !slices.ContainsFunc(got.routes, func(other net.IPNet) bool { return other.String() == r.String() }) && (!real || c.routes(r)) {
			return fmt.Errorf("ADD drops the route to %v of prevResult: it prints %s", &r, clip(o.Stdout))
		}
	}
	for _, name := range prev.dns {
		if !slices.Contains(got.dns, name) {
			return fmt.Errorf("ADD drops %q from the dns of prevResult: it prints %s", name, clip(o.Stdout))
		}
	}
	for _, c := range []content{prev, alone} {
		for _, address := range c.addresses() {
			if now, was := got.on[address], c.on[address][0]; len(now) > 0 && !slices.Contains(now, was) {
				return fmt.Errorf("with a prevResult ADD says that %s is on the interface %q, not on %q: it prints %s", address, now[0], was, clip(o.Stdout))
			}
		}
	}
	return nil
}

// lost returns the name of an interface of prevResult that the result has in this container, and
// that is not there.
func (c *container) lost(prev, result content) string {
	for name, sandbox := range prev.inside {
		if sandbox == c.path && result.inside[name] == c.path && !c.has(name) {
			return name
		}
	}
	return ""
}

// keeps reports whether the interface still has the address.
func (c *container) keeps(ifname, address string) bool {
	all, _, err := c.real.Interface(ifname)
	return err == nil && slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.String() == address })
}

// routes reports whether the container still has the route.
func (c *container) routes(dst net.IPNet) bool {
	has, err := c.real.HasRoute(dst)
	return err == nil && has
}

// A content is the interfaces and addresses of a result.
type content struct {
	interfaces []string
	on         map[string][]string // the interfaces of each address, or ""
	gateways   map[string]string   // of each address that has one
	routes     []net.IPNet         // to here
	dns        []string            // name servers, domain, search list and options
	inside     map[string]string   // the sandbox of each interface that has one
}

// addresses returns the addresses of c, sorted.
func (c content) addresses() []string { return slices.Sorted(maps.Keys(c.on)) }

// contentOf returns the content of r, which may be nil. It fails with err if that is not nil.
func contentOf(r types.Result, err error) (c content, _ error) {
	if err != nil || r == nil {
		return c, err
	}
	current, err := types100.NewResultFromResult(r)
	if err != nil {
		return c, err
	}
	c.inside = make(map[string]string)
	for _, i := range current.Interfaces {
		c.interfaces = append(c.interfaces, i.Name)
		if i.Sandbox != "" {
			c.inside[i.Name] = i.Sandbox
		}
	}
	for _, r := range current.Routes {
		c.routes = append(c.routes, r.Dst)
	}
	c.dns = slices.Concat(current.DNS.Nameservers, []string{current.DNS.Domain}, current.DNS.Search, current.DNS.Options)
	c.on, c.gateways = make(map[string][]string), make(map[string]string)
	for _, ip := range current.IPs {
		name := ""
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(c.interfaces) {
			name = c.interfaces[*i]
		}
		address := ip.Address.String()
		c.on[address] = append(c.on[address], name)
		if ip.Gateway != nil {
			c.gateways[address] = ip.Gateway.String()
		}
	}
	return c, nil
}
