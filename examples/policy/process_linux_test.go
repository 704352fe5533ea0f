package main

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"sigs.k8s.io/knftables"

	"github.com/metacni/metacni/delegate/conform"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/internal/programtest"
)

func TestMain(m *testing.M) {
	programtest.Main(m, "policy", func() {
		// Each process begins with what an ADD of c1 leaves if the delegate gives no address.
		fake := knftables.NewFake(knftables.InetFamily, "policy/c1/eth0")
		tx := fake.NewTransaction()
		tx.Add(&knftables.Table{})
		tx.Add(&knftables.Chain{Name: chain})
		if err := fake.Run(context.Background(), tx); err != nil {
			panic(err)
		}
		plugin.Main(policy(func(knftables.Family, string, ...knftables.Option) (knftables.Interface, error) { return fake, nil }))
	})
}

// A runtime executes policy. Tests with real namespaces and nft are in internal/e2e.
func TestProcess(t *testing.T) {
	t.Parallel()
	programtest.Test(t, func(h *programtest.Host, version, fake string) string {
		return fmt.Sprintf(`{"cniVersion":%q,"name":"pods","type":"policy","cniDir":%q,"delegate":{"type":"fake","dir":%q%s}}`, version, h.State, h.Dir, fake)
	})
}

// Policy passes the conformance checks.
func TestConform(t *testing.T) {
	t.Parallel()
	conform.Test(t, conform.Program(policy(newTables().open).Execute), conform.Config{
		Strict: true,
		Stdin: func(dir string) string {
			return fmt.Sprintf(`{"type":"policy","cniDir":%q,"delegate":{"plugins":[{"type":"bridge"},{"type":"tuning"}]},"deny":["10.0.0.0/8"]}`,
				filepath.Join(dir, "state"))
		},
		Delegates: []string{"bridge", "tuning"},
	})
}
