package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/knftables"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/internal/programtest"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// tables are the nft tables of a node.
type tables struct {
	mu   sync.Mutex
	all  map[string]*knftables.Fake
	fail error // of every transaction
}

func newTables() *tables { return &tables{all: make(map[string]*knftables.Fake)} }

func (ts *tables) open(family knftables.Family, name string, _ ...knftables.Option) (knftables.Interface, error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.all[name] == nil {
		ts.all[name] = knftables.NewFake(family, name)
	}
	return table{ts.all[name], ts}, nil
}

// A table is a fake whose transactions can fail.
type table struct {
	*knftables.Fake
	of *tables
}

func (t table) Run(ctx context.Context, tx *knftables.Transaction) error {
	if t.of.fail != nil {
		return t.of.fail
	}
	return t.Fake.Run(ctx, tx)
}

// rules lists the chains and the rules of all tables, sorted.
func (ts *tables) rules() (list []string) {
	for _, fake := range ts.all {
		for line := range strings.Lines(fake.Dump()) {
			if what, about, _ := strings.Cut(strings.TrimSpace(line), " inet "); what != "add table" {
				list = append(list, about)
			}
		}
	}
	slices.Sort(list)
	return list
}

// A host is a node that policy runs on.
type host struct {
	*programtest.Memory
	tables *tables
	ifname string
}

const denies = `"deny":["10.2.0.0/16","192.0.2.7/32","fd00:2::/64"]`

// newHost returns a host whose plugin bridge gives the container cN the addresses 10.1.0.N
// and fd00:1::N.
func newHost(t *testing.T) *host {
	t.Helper()
	ts := newTables()
	h := &host{programtest.NewMemory(t, policy(ts.open), "tuning"), ts, "eth0"}
	h.Exec.Plugins["bridge"] = func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
		n := strings.TrimPrefix(c.ContainerID, "c")
		return fmt.Appendf(nil, `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.%s/24"},{"address":"fd00:1::%s/64"}]}`, n, n), nil
	}
	return h
}

// run runs a command for the interface h.ifname of a container, with a configuration that has more
// keys, as JSON without the braces.
func (h *host) run(command, id, keys string) error {
	conf := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"pods","type":"policy","cniDir":%q,%s}`, h.Path("state"), keys)
	return h.Do(command, conf, programtest.As(id), programtest.At(h.ifname))
}

// wantRules wants these chains and rules on the node.
func (h *host) wantRules(want ...string) {
	h.Helper()
	nodetest.Equal(h, "rules", h.tables.rules(), slices.Sorted(slices.Values(want)))
}

// tableFor is the name of the table for an interface of a container.
func tableFor(id, ifname string) string {
	return scratch.Key{Network: "pods", ContainerID: id, IfName: ifname}.Tag("policy-")
}

// chained are the chain and the rules of the container cN.
func chained(n string) []string { return chainedIn(tableFor("c"+n, "eth0"), n) }

// chainedIn is chained for another table.
func chainedIn(table, n string) []string {
	pod := table + " forward "
	return []string{
		pod + "ip saddr 10.1.0." + n + " ip daddr 10.2.0.0/16 drop",
		pod + "ip saddr 10.1.0." + n + " ip daddr 192.0.2.7/32 drop",
		pod + "ip6 saddr fd00:1::" + n + " ip6 daddr fd00:2::/64 drop",
		pod + "{ type filter hook forward priority 0 ; }",
	}
}

const (
	bridge = `"delegate":{"type":"bridge"},` + denies
	step   = `"step":"deny",` + denies // as another program that has the record calls it
)

// Each container has rules of its own, for each address and the denied destinations of its
// family. They go with the container, and those of others stay.
func TestContainersHaveTheirOwnRules(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	nodetest.OK(t, h.run("ADD", "c1", bridge))
	nodetest.OK(t, h.run("ADD", "c2", bridge))
	h.wantRules(append(chained("1"), chained("2")...)...)
	nodetest.OK(t, h.run("CHECK", "c1", bridge))
	nodetest.OK(t, h.run("DEL", "c1", bridge))
	h.wantRules(chained("2")...)
	nodetest.OK(t, h.run("DEL", "c2", `"delegate":5,"deny":5`)) // from the record
	h.wantRules()
	h.WantNothing("state")
}

// If a plugin of the delegate fails there are no rules. If the rules fail, the delegate is
// detached.
func TestAllOrNothing(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.FailOn("ADD tuning", 107)
	two := `"delegate":{"plugins":[{"type":"bridge"},{"type":"tuning"}]},` + denies
	nodetest.Fails(t, h.run("ADD", "c1", two), 107, "tuning")
	h.WantTrace("ADD bridge eth0", "ADD tuning eth0", "DEL tuning eth0", "DEL bridge eth0")
	h.WantNothing("state")

	h.tables.fail = errors.New("no such family")
	nodetest.Fails(t, h.run("ADD", "c1", bridge), 999, `plugin "policy/deny"`, "no such family")
	h.Trace()
	h.tables.fail = nil
	nodetest.OK(t, h.run("DEL", "c1", bridge)) // undoing it has failed as well
	h.wantRules()
	h.WantNothing("state")
}

// The step needs neither prevResult nor a table for DEL, and can be repeated.
func TestStepAlone(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	step := step + fmt.Sprintf(`,"table":%q`, tableFor("c1", "eth0"))
	result := `,"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.1/24"},{"address":"fd00:1::1/64"}]}`
	nodetest.OK(t, h.run("DEL", "c1", step))
	for range 2 {
		nodetest.OK(t, h.run("ADD", "c1", step+result))
		h.wantRules(chained("1")...)
	}
	for range 2 {
		nodetest.OK(t, h.run("DEL", "c1", step))
		h.wantRules()
	}
	h.WantTrace() // no delegate
}

// Without the addresses nothing is denied, so the ADD fails.
func TestAddressesMustBeKnown(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	nodetest.Fails(t, h.run("ADD", "c1", step), 999, "addresses")
	nodetest.Fails(t, h.run("ADD", "c1", step+`,"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"appletalk/8"}]}`), 6, "prevResult", "addresses")
	nodetest.Fails(t, h.run("CHECK", "c1", step), 999, "addresses")
	h.wantRules()
}

// CHECK fails if a rule is missing, or the whole chain.
func TestCheck(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	nodetest.OK(t, h.run("ADD", "c1", bridge))
	fake := h.tables.all[tableFor("c1", "eth0")]
	rules, err := fake.ListRules(t.Context(), chain)
	nodetest.OK(t, err)
	tx := fake.NewTransaction()
	tx.Delete(rules[1])
	nodetest.OK(t, fake.Run(t.Context(), tx))
	nodetest.Fails(t, h.run("CHECK", "c1", bridge), 999, `plugin "policy/deny"`, "2 nft rules, want 3")
	nodetest.OK(t, h.run("DEL", "c1", fmt.Sprintf(`"step":"deny","table":%q`, tableFor("c1", "eth0"))))
	nodetest.Fails(t, h.run("CHECK", "c1", bridge), 999, "no such table")
}

// The author of a pod chooses the name of an interface. It never gets into nft's language, and the
// rules of one interface do not go with another.
func TestNamesOfInterfacesAreNoNft(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	names := []string{"eth0", "eth0#", "a;b", `"$(x)`, "abcdefghijklmno"}
	for _, h.ifname = range names {
		nodetest.OK(t, h.run("ADD", "c1", bridge))
	}
	for i, name := range names {
		var want []string
		for _, other := range names[i:] {
			want = append(want, chainedIn(tableFor("c1", other), "1")...)
		}
		h.wantRules(want...)
		for table := range h.tables.all {
			nodetest.Equal(t, "other characters in "+table, strings.Trim(strings.TrimPrefix(table, "policy-"), "abcdefghijklmnopqrstuvwxyz234567"), "")
		}
		h.ifname = name
		nodetest.OK(t, h.run("CHECK", "c1", bridge))
		nodetest.OK(t, h.run("DEL", "c1", bridge))
	}
	h.wantRules()
	h.WantNothing("state")
}

// The record of an earlier release has no table: the rules are in one with the interface's name. For
// an interface whose name nft does not accept there never were rules.
func TestRulesOfAnEarlierRelease(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	former := policy(h.tables.open)
	former.Networks = func(_ context.Context, c *plugin.Call) ([]netconf.Network, error) {
		conf, err := plugin.Config[config](c)
		nets := []netconf.Network{conf.Delegate}
		return nets, errors.Join(err, c.Append(nets, "deny", map[string]any{"deny": conf.Deny}))
	}
	now := h.Plugin
	h.Plugin = former
	nodetest.OK(t, h.run("ADD", "c1", bridge))
	h.Plugin = now
	h.wantRules(chainedIn("policy/c1/eth0", "1")...)
	nodetest.OK(t, h.run("CHECK", "c1", bridge))
	h.ifname = "eth0#"
	nodetest.OK(t, h.run("DEL", "c1", step))
	h.wantRules(chainedIn("policy/c1/eth0", "1")...)
	h.ifname = "eth0"
	nodetest.OK(t, h.run("DEL", "c1", bridge))
	h.wantRules()
	h.WantNothing("state")
}

// A mistake in the configuration is found before a plugin runs.
func TestBadConfiguration(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for keys, code := range map[string]uint{
		`"delegate":{"type":"bridge"},"deny":["10.0.0.0/33"]`: 6,
		`"delegate":{"type":"bridge"},"deny":"10.0.0.0/8"`:    6,
		`"deny":[]`:       7,
		`"delegate":null`: 7,
	} {
		nodetest.Fails(t, h.run("ADD", "c1", keys), code)
		nodetest.Fails(t, h.run("STATUS", "", keys), code)
	}
	h.WantTrace()
	h.WantNothing("state")
}

// Without nft the plugin is not ready, and nothing is attached.
func TestWithoutNft(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.Plugin = policy(func(knftables.Family, string, ...knftables.Option) (knftables.Interface, error) {
		return nil, errors.New("no nft")
	})
	nodetest.Fails(t, h.run("STATUS", "", bridge), 50, "no nft")
}
