// Policy is a CNI meta-plugin that attaches a container to one network, and drops the
// packets that the container sends to destinations which the configuration denies.
//
//go:debug updatemaxprocs=0
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"

	"sigs.k8s.io/knftables"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
)

func main() { plugin.Main(policy(knftables.New)) }

// policy returns the plugin. open opens an nft table: it is knftables.New, or a fake in tests.
// Each interface has a table, so that DEL needs only its name, and leaves nothing. That is a hash:
// CNI_IFNAME, which is often chosen by the pod's author, must not get into the language of nft.
func policy(open func(knftables.Family, string, ...knftables.Option) (knftables.Interface, error)) plugin.Plugin {
	on := func(do func(context.Context, *plugin.Call, knftables.Interface) error) func(context.Context, *plugin.Call) error {
		return func(ctx context.Context, c *plugin.Call) error {
			name, err := tableOf(c)
			if err != nil {
				return err
			}
			table, err := open(knftables.InetFamily, name)
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
		Steps:    map[string]plugin.Step{"deny": {Add: on(enforce), Check: on(enforce), Del: on(del), Status: on(nil)}},
	}
}

// tableOf returns the name of the table, which the record has in the configuration of the step. One
// of an earlier release has none: the table had the interface's name, if nft accepted that.
func tableOf(c *plugin.Call) (name string, err error) {
	err = c.Value("table", &name)
	if name == "" && regexp.MustCompile(`^[a-zA-Z0-9_.-]+$`).MatchString(c.IfName) {
		name = "policy/" + c.ContainerID + "/" + c.IfName
	}
	return cmp.Or(name, c.Tag("policy-")), err
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
	nets := []netconf.Network{conf.Delegate}
	return nets, c.Append(nets, "deny", map[string]any{"deny": conf.Deny, "table": c.Tag("policy-")})
}

const chain = "forward"

// enforce drops what is sent from the addresses that the delegate has given the container.
// For CHECK it changes nothing, and fails if the rules are not there.
func enforce(ctx context.Context, c *plugin.Call, table knftables.Interface) error {
	conf, err := plugin.Config[config](c)
	prev, prevErr := c.PrevResult()
	if err = errors.Join(err, prevErr); err != nil || prev == nil || len(conf.Deny) > 0 && len(prev.IPs) == 0 {
		return errors.Join(err, errors.New("the container's addresses and what to deny must be known"))
	}
	tx := table.NewTransaction()
	tx.Add(&knftables.Table{}) // there may be one
	tx.Delete(&knftables.Table{})
	whose := c.ContainerID[:min(len(c.ContainerID), 64)]
	tx.Add(&knftables.Table{Comment: &whose})
	tx.Add(&knftables.Chain{
		Name: chain, Type: knftables.PtrTo(knftables.FilterType),
		Hook: knftables.PtrTo(knftables.ForwardHook), Priority: knftables.PtrTo(knftables.FilterPriority),
	})
	empty := tx.NumOperations()
	for _, ip := range prev.IPs {
		for _, to := range conf.Deny {
			if is4 := ip.Address.IP.To4() != nil; is4 == to.Addr().Is4() {
				family := map[bool]string{true: "ip", false: "ip6"}[is4]
				tx.Add(&knftables.Rule{Chain: chain, Rule: fmt.Sprintf("%[1]s saddr %[2]s %[1]s daddr %[3]s drop", family, ip.Address.IP, to)})
			}
		}
	}
	if c.Command == delegate.CommandAdd {
		return table.Run(ctx, tx)
	}
	have, err := table.ListRules(ctx, chain)
	if want := tx.NumOperations() - empty; err == nil && len(have) != want {
		err = fmt.Errorf("the container has %d nft rules, want %d", len(have), want)
	}
	return err
}

func del(ctx context.Context, _ *plugin.Call, table knftables.Interface) error {
	tx := table.NewTransaction()
	tx.Add(&knftables.Table{}) // there may be none
	tx.Delete(&knftables.Table{})
	return table.Run(ctx, tx)
}
