// Policy is a CNI meta-plugin that attaches a container to one network, and drops the
// packets that the container sends to destinations which the configuration denies.
//
//go:debug updatemaxprocs=0
package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/knftables"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
)

func main() { plugin.Main(policy(knftables.New)) }

// policy returns the plugin. open opens an nft table: it is knftables.New, or a fake in tests.
func policy(open func(knftables.Family, string, ...knftables.Option) (knftables.Interface, error)) plugin.Plugin {
	on := func(do func(context.Context, *plugin.Call, knftables.Interface) error) func(context.Context, *plugin.Call) error {
		return func(ctx context.Context, c *plugin.Call) error {
			table, err := open(knftables.InetFamily, "policy-"+c.Name)
			if err != nil || do == nil {
				return err
			}
			return do(ctx, c, table)
		}
	}
	return plugin.Plugin{
		About:    "CNI meta-plugin policy",
		StateDir: "/var/lib/cni/policy", StateKey: "cniDir", Forget: "multinet forget",
		Networks: networks,
		Steps:    map[string]plugin.Step{"deny": {Add: on(enforce), Check: on(enforce), Del: on(del), GC: on(gc), Status: on(nil)}},
	}
}

type config struct {
	Delegate netconf.Network
	Deny     []netip.Prefix // also in the configuration of the step
}

func networks(_ context.Context, c *plugin.Call) ([]netconf.Network, error) {
	conf, err := plugin.Config[config](c)
	if err != nil {
		return nil, err
	}
	return c.Append([]netconf.Network{conf.Delegate}, "deny", map[string]any{"deny": conf.Deny})
}

// enforce drops what is sent from the addresses that the delegate has given the container.
// For CHECK it changes nothing, and fails if the rules are not there.
func enforce(ctx context.Context, c *plugin.Call, table knftables.Interface) error {
	conf, err := plugin.Config[config](c)
	prev, prevErr := c.PrevResult()
	if err = errors.Join(err, prevErr); err != nil || prev == nil {
		return errors.Join(err, errors.New("the container's addresses and what to deny must be known"))
	}
	name := chain(c.ContainerID, c.IfName)
	tx := without(table, name)
	tx.Add(&knftables.Chain{
		Name: name, Type: knftables.PtrTo(knftables.FilterType),
		Hook: knftables.PtrTo(knftables.ForwardHook), Priority: knftables.PtrTo(knftables.FilterPriority),
	})
	empty := tx.NumOperations()
	for _, ip := range prev.IPs {
		for _, to := range conf.Deny {
			if is4 := ip.Address.IP.To4() != nil; is4 == to.Addr().Is4() {
				family := map[bool]string{true: "ip", false: "ip6"}[is4]
				tx.Add(&knftables.Rule{Chain: name, Rule: fmt.Sprintf("%[1]s saddr %[2]s %[1]s daddr %[3]s drop", family, ip.Address.IP, to)})
			}
		}
	}
	if c.Command == delegate.CommandAdd {
		return table.Run(ctx, tx)
	}
	have, err := table.ListRules(ctx, name)
	if want := tx.NumOperations() - empty; err == nil && len(have) != want {
		err = fmt.Errorf("the container has %d nft rules, want %d", len(have), want)
	}
	return err
}

func del(ctx context.Context, c *plugin.Call, table knftables.Interface) error {
	return table.Run(ctx, without(table, chain(c.ContainerID, c.IfName)))
}

func gc(ctx context.Context, c *plugin.Call, table knftables.Interface) error {
	valid, err := c.Valid()
	stale, listErr := table.List(ctx, "chains")
	if valid == nil || knftables.IsNotFound(listErr) {
		return err
	}
	for _, a := range valid {
		stale = slices.DeleteFunc(stale, func(name string) bool { return name == chain(a.ContainerID, a.IfName) })
	}
	return errors.Join(listErr, table.Run(ctx, without(table, stale...)))
}

// chain names the chain with the rules of a container. No other chain refers to it.
func chain(containerID, ifname string) string { return "pod/" + containerID + "/" + ifname }

// without returns a transaction that deletes those of the chains that exist.
func without(table knftables.Interface, chains ...string) *knftables.Transaction {
	tx := table.NewTransaction()
	tx.Add(&knftables.Table{})
	for _, name := range chains {
		tx.Add(&knftables.Chain{Name: name})
		tx.Delete(&knftables.Chain{Name: name})
	}
	return tx
}
