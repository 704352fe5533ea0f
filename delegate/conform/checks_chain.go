package conform

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

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/printed"
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
	return onNew(func(ctx context.Context, b *bench, _ outcome) error { return b.chains(ctx, alone) })(ctx, s)
}

// chains fails unless an ADD with a prevResult prints the content of that, and that of an ADD
// alone where it was.
func (b *bench) chains(ctx context.Context, alone content) error {
	b.c1.prev[""] = before()
	return b.carries(b.call(ctx, delegatetest.Invocation{Command: "ADD"}), alone)
}

// carries fails unless the ADD of c1 printed what its prevResult has, and nothing of that or of
// alone in another place. What the plugin has removed from a real container may be missing.
func (b *bench) carries(o outcome, alone content) error {
	c := b.c1
	prev, err := contentOf(b.before(c, b.ifname))
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
	real := b.chained && b.node != nil // and so is what prevResult has
	if name := c.lost(prev, got); real && name != "" {
		return fmt.Errorf("the result of ADD has the interface %q of prevResult, which is no longer in the container: it prints %s", name, printed.Clip(o.Stdout))
	}
	for _, t := range prev.things {
		if !slices.Contains(got.things, t) && (!real || c.still(t, b.ifname, prev.inside)) {
			return fmt.Errorf("ADD drops the %s %s of prevResult: it prints %s", t.what, t.value, printed.Clip(o.Stdout))
		}
	}
	for _, c := range []content{prev, alone} {
		for _, address := range c.addresses() {
			if now, was := got.on[address], c.on[address][0]; len(now) > 0 && !slices.Contains(now, was) {
				return fmt.Errorf("with a prevResult ADD says that %s is on the interface %q, not on %q: it prints %s", address, now[0], was, printed.Clip(o.Stdout))
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

// still reports whether the container still has a thing of prevResult. inside holds the sandbox of each
// interface that has one.
func (c *container) still(t thing, ifname string, inside map[string]string) bool {
	switch t.what {
	case "interface":
		return inside[t.value] == "" || c.has(t.value)
	case "address":
		return c.keeps(ifname, t.value)
	case "gateway of":
		return c.keeps(ifname, t.value) && c.routes("0.0.0.0/0")
	case "route to":
		return c.routes(t.value)
	}
	return true
}

// keeps reports whether the interface still has the address.
func (c *container) keeps(ifname, address string) bool {
	all, _, err := c.node.Addresses(c.path, ifname)
	return err == nil && slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.String() == address })
}

// routes reports whether the container still has the route.
func (c *container) routes(to string) bool {
	_, dst, err := net.ParseCIDR(to)
	if err != nil {
		return true
	}
	has, err := c.node.HasRoute(c.path, dst)
	return err == nil && has
}

// A content is the interfaces and addresses of a result.
type content struct {
	things     []thing
	interfaces []string
	on         map[string][]string // the interfaces of each address, or ""
	inside     map[string]string   // the sandbox of each interface that has one
}

// A thing is a part of a result that the next plugin of a chain hands on.
type thing struct{ what, value string }

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
	c.inside, c.on = make(map[string]string), make(map[string][]string)
	add := func(what string, values ...string) {
		for _, v := range values {
			c.things = append(c.things, thing{what, v})
		}
	}
	for _, i := range current.Interfaces {
		add("interface", i.Name)
		c.interfaces = append(c.interfaces, i.Name)
		if i.Sandbox != "" {
			c.inside[i.Name] = i.Sandbox
		}
	}
	for _, ip := range current.IPs {
		name := ""
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(c.interfaces) {
			name = c.interfaces[*i]
		}
		address := ip.Address.String()
		add("address", address)
		c.on[address] = append(c.on[address], name)
		if ip.Gateway != nil {
			add("gateway of", address)
		}
	}
	for _, r := range current.Routes {
		add("route to", r.Dst.String())
	}
	for _, field := range []struct { // a plugin may put others in their place
		name  string
		given bool
	}{
		{"name servers", len(current.DNS.Nameservers) > 0},
		{"domain", current.DNS.Domain != ""},
		{"search domains", len(current.DNS.Search) > 0},
		{"options", len(current.DNS.Options) > 0},
	} {
		if field.given {
			add("DNS", field.name)
		}
	}
	return c, nil
}
