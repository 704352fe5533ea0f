package main

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// Fallback passes the conformance checks.
func TestConform(t *testing.T) {
	t.Parallel()
	delegatetest.Conform(t, delegatetest.Program(fallback().Execute), delegatetest.Config{
		Stdin: func(dir string) string {
			return fmt.Sprintf(`{"type":"fallback","cniDir":%q,"choices":[{"type":"sriov"},{"name":"spare","plugins":[{"type":"macvlan"},{"type":"tuning"}]},{"type":"bridge"}]}`,
				filepath.Join(dir, "state"))
		},
		Delegates: []string{"sriov"},
		Idle:      []string{"macvlan", "tuning", "bridge"},
	})
}
