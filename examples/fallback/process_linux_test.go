package main

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/metacni/metacni/delegate/conform"
	"github.com/metacni/metacni/examples/internal/programtest"
)

func TestMain(m *testing.M) { programtest.Main(m, "fallback", main) }

// A runtime executes fallback. Tests with real namespaces are in internal/e2e.
func TestProcess(t *testing.T) {
	t.Parallel()
	programtest.Test(t, func(h *programtest.Host, version, fake string) string {
		return fmt.Sprintf(`{"cniVersion":%q,"name":"pods","type":"fallback","cniDir":%q,"choices":[{"type":"fake","dir":%q%s}]}`, version, h.State, h.Dir, fake)
	})
}

// Fallback passes the conformance checks.
func TestConform(t *testing.T) {
	t.Parallel()
	conform.Test(t, conform.Program(fallback().Execute), conform.Config{
		Strict: true,
		Stdin: func(dir string) string {
			return fmt.Sprintf(`{"type":"fallback","cniDir":%q,"choices":[{"type":"sriov"},{"name":"spare","plugins":[{"type":"macvlan"},{"type":"tuning"}]},{"type":"bridge"}]}`,
				filepath.Join(dir, "state"))
		},
		Delegates: []string{"sriov"},
		Idle:      []string{"macvlan", "tuning", "bridge"},
	})
}
