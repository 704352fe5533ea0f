// Policy is a CNI meta-plugin that attaches a container to one network, and drops what the
// container sends to the destinations that its configuration denies.
//
//go:debug updatemaxprocs=0
package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"sigs.k8s.io/knftables"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
)

func main() { plugin.Main(policy(knftables.New)) }

// policy returns the plugin. open opens a table of nftables. Every interface has a table of its
// own, so that DEL needs to know nothing but its name.
func policy(open func(knftables.Family, string, ...knftables.Option) (knftables.Interface, error)) plugin.Plugin {
	with := func(do func(context.Context, *plugin.Call, knftables.Interface) error) func(context.Context, *plugin.Call) error {
		return func(ctx context.Context, c *plugin.Call) error {
			table, err := open(knftables.InetFamily, "policy/"+c.ContainerID+"/"+c.IfName)
			if err != nil {
				return err
			}
			return do(ctx, c, table)
		}
	}
	return plugin.Plugin{
		About:    "CNI meta-plugin policy",
		StateDir: "/var/lib/cni/policy", StateKey: "cniDir", Forget: "multinet forget",
		Networks: networks,
		Steps:    map[string]plugin.Step{"deny": {Add: with(add), Check: with(check), Del: with(del), Status: with(ready)}},
	}
}

// A denial is the configuration of the step.
type denial struct {
	Deny []netip.Prefix `json:"deny"`
}

func networks(_ context.Context, c *plugin.Call) ([]netconf.Network, error) {
	conf, err := plugin.Config[struct {
		Delegate netconf.Network `json:"delegate"`
		denial
	}](c)
	if err != nil {
		return nil, err
	}
	return c.Append([]netconf.Network{conf.Delegate}, "deny", conf.denial)
}

const chain = "forward"

// rules returns what drops packets from the addresses that the delegate has given.
func rules(c *plugin.Call) (rules []*knftables.Rule, err error) {
	conf, err := plugin.Config[denial](c)
	prev, prevErr := c.PrevResult()
	if err = errors.Join(err, prevErr); err != nil || prev == nil {
		return nil, err
	}
	for _, ip := range prev.IPs {
		for _, to := range conf.Deny {
			if is4 := ip.Address.IP.To4() != nil; is4 == to.Addr().Is4() {
				family := map[bool]string{true: "ip", false: "ip6"}[is4]
				rules = append(rules, &knftables.Rule{Chain: chain, Rule: knftables.Concat(family, "saddr", ip.Address.IP, family, "daddr", to, "drop")})
			}
		}
	}
	return rules, nil
}

func add(ctx context.Context, c *plugin.Call, table knftables.Interface) error {
	rules, err := rules(c)
	if err != nil {
		return err
	}
	tx, hook, priority, kind := table.NewTransaction(), knftables.ForwardHook, knftables.FilterPriority, knftables.FilterType
	tx.Add(&knftables.Table{})
	tx.Add(&knftables.Chain{Name: chain, Type: &kind, Hook: &hook, Priority: &priority})
	tx.Flush(&knftables.Chain{Name: chain})
	for _, r := range rules {
		tx.Add(r)
	}
	return table.Run(ctx, tx)
}

func ready(context.Context, *plugin.Call, knftables.Interface) error { return nil } // nft is there

func check(ctx context.Context, c *plugin.Call, table knftables.Interface) error {
	want, err := rules(c)
	if err != nil {
		return err
	}
	have, err := table.ListRules(ctx, chain)
	if err == nil && len(have) != len(want) {
		err = fmt.Errorf("the table has %d rules, want %d", len(have), len(want))
	}
	return err
}

func del(ctx context.Context, _ *plugin.Call, table knftables.Interface) error {
	tx := table.NewTransaction()
	tx.Add(&knftables.Table{}) // there may be none
	tx.Delete(&knftables.Table{})
	return table.Run(ctx, tx)
}
