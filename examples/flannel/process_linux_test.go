package main

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/metacni/metacni/delegate/conform"
	"github.com/metacni/metacni/examples/internal/programtest"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

func TestMain(m *testing.M) { programtest.Main(m, "flannel", main) }

// A runtime executes flannel. Tests with real namespaces are in internal/e2e.
func TestProcess(t *testing.T) {
	t.Parallel()
	programtest.Test(t, func(h *programtest.Host, version, fake string) string {
		file := (&nodetest.Node{TB: t, Dir: h.Dir}).Write("subnet.env", subnetEnv)
		return fmt.Sprintf(`{"cniVersion":%q,"name":"pods","type":"flannel","dataDir":%q,"subnetFile":%q,"delegate":{"type":"fake","dir":%q%s}}`,
			version, h.State, file, h.Dir, fake)
	})
}

// Flannel, the short plugin of the example and the ported one of MIGRATION.md pass the
// conformance checks.
func TestConform(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]conform.Program{"flannel": flannel().Execute, "short": short.Execute, "ported": ported().Execute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conform.Test(t, run, conform.Config{Strict: true, Delegates: []string{"bridge"}, Stdin: func(dir string) string {
				if name == "short" {
					return fmt.Sprintf(`{"type":"flannel","dataDir":%q,"subnet":"10.9.1.0/24","delegate":{"type":"bridge"}}`, filepath.Join(dir, "state"))
				}
				file := (&nodetest.Node{TB: t, Dir: dir}).Write("subnet.env", dualStack)
				return fmt.Sprintf(`{"type":"flannel","dataDir":%q,"subnetFile":%q,"delegate":{"type":"bridge"}}`, filepath.Join(dir, "state"), file)
			}})
		})
	}
}
