package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"sigs.k8s.io/knftables"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
)

// A firewall is a host's nftables.
type firewall struct {
	mu     sync.Mutex
	tables map[string]*knftables.Fake
	broken error
}

func (f *firewall) open(family knftables.Family, name string, _ ...knftables.Option) (knftables.Interface, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tables[name] == nil {
		f.tables[name] = knftables.NewFake(family, name)
	}
	return f.tables[name], f.broken
}

// rules returns those of all containers, without the words that all have.
func (f *firewall) rules(t *testing.T) (all []string) {
	t.Helper()
	for _, table := range f.tables {
		for line := range strings.Lines(table.Dump()) {
			if _, rule, ok := strings.Cut(strings.TrimSpace(line), " "+chain+" "); ok && strings.HasPrefix(line, "add rule") {
				all = append(all, rule)
			} else if !ok && !strings.HasPrefix(line, "add table") {
				t.Errorf("there is %s", line)
			}
		}
	}
	return all
}

func newFirewall() *firewall { return &firewall{tables: make(map[string]*knftables.Fake)} }

// A host runs policy without processes.
type host struct {
	*nodetest.Node
	*firewall
}

func newHost(t *testing.T) host {
	t.Helper()
	h := host{nodetest.New(t), newFirewall()}
	result := &types100.Result{CNIVersion: "1.1.0"}
	for _, cidr := range []string{"10.1.0.2/24", "fd00::2/64"} {
		ip, subnet, err := net.ParseCIDR(cidr)
		nodetest.OK(t, err)
		result.IPs = append(result.IPs, &types100.IPConfig{Address: net.IPNet{IP: ip, Mask: subnet.Mask}})
	}
	h.Exec.Plugins = map[string]delegatetest.Plugin{"bridge": delegatetest.Result(result)}
	return h
}

const denied = `"deny":["192.0.2.0/24","2001:db8::/32"],"delegate":{"type":"bridge"}`

// run runs a command for eth0 of c1, with more keys in its configuration.
func (h host) run(ctx context.Context, command, keys string) error {
	return delegatetest.RunPlugin(ctx, delegatetest.Program(policy(h.open).Execute), h.Exec, delegatetest.Call{
		Command: command, ContainerID: "c1", NetNS: "/absent", IfName: "eth0", Path: "/opt/cni/bin",
		Stdin: fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"pods","type":"policy","cniDir":%q,%s}`, h.Path("state"), keys),
	}).Err()
}

// Packets from the addresses of the container to what is denied are dropped, of each family. DEL
// removes the rules from the record alone.
func TestRulesFollowTheContainer(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	nodetest.OK(t, h.run(t.Context(), "ADD", denied))
	nodetest.Equal(t, "rules", h.rules(t), []string{
		"ip saddr 10.1.0.2 ip daddr 192.0.2.0/24 drop", "ip6 saddr fd00::2 ip6 daddr 2001:db8::/32 drop",
	})
	nodetest.OK(t, h.run(t.Context(), "CHECK", denied))
	nodetest.OK(t, h.run(t.Context(), "STATUS", denied))
	table, err := h.open(knftables.InetFamily, "policy/c1/eth0")
	nodetest.OK(t, err)
	tx := table.NewTransaction()
	tx.Flush(&knftables.Chain{Name: chain})
	nodetest.OK(t, table.Run(t.Context(), tx))
	nodetest.Says(t, h.run(t.Context(), "CHECK", denied), `plugin "policy/deny"`, "the table has 0 rules, want 2")
	nodetest.OK(t, h.run(t.Context(), "DEL", `"deny":5`))
	nodetest.Says(t, h.run(t.Context(), "CHECK", denied), "not added")
	nodetest.Equal(t, "rules", h.rules(t), nil)
	nodetest.OK(t, h.run(t.Context(), "DEL", denied))
	h.WantNothing("state")
	h.WantTrace("ADD bridge eth0", "CHECK bridge eth0", "STATUS bridge", "CHECK bridge eth0", "DEL bridge eth0")
}

// Without nft nothing is attached.
func TestWithoutNftNothingIsAttached(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.broken = errors.New("nft is not installed")
	nodetest.Fails(t, h.run(t.Context(), "STATUS", denied), 50, "nft is not installed")
	nodetest.Says(t, h.run(t.Context(), "ADD", denied), "nft is not installed")
	h.broken = nil
	nodetest.OK(t, h.run(t.Context(), "DEL", denied))
	nodetest.Equal(t, "alive", h.Exec.Live(), nil)
	nodetest.Fails(t, h.run(t.Context(), "ADD", `"deny":["192.0.2.0"],"delegate":{"type":"bridge"}`), types.ErrDecodingFailure, "deny")
	nodetest.Fails(t, h.run(t.Context(), "ADD", `"deny":[]`), types.ErrInvalidNetworkConfig, "a network is null")
}

// Policy passes the conformance checks, with its step.
func TestConform(t *testing.T) {
	t.Parallel()
	delegatetest.Conform(t, delegatetest.Program(policy(newFirewall().open).Execute), delegatetest.Config{
		Stdin: func(dir string) string {
			return fmt.Sprintf(`{"type":"policy","cniDir":%q,"deny":["192.0.2.0/24"],"delegate":{"name":"lan","plugins":[{"type":"bridge"},{"type":"tuning"}]}}`,
				filepath.Join(dir, "state"))
		},
		Delegates: []string{"bridge", "tuning"},
	})
}
