package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// conformConfig has flannel delegate to bridge, with a subnet.env.
var conformConfig = delegatetest.Config{
	Stdin: func(dir string) string {
		subnet := filepath.Join(dir, "subnet.env")
		if err := os.WriteFile(subnet, []byte(dualStack), 0o600); err != nil {
			panic(err)
		}
		return fmt.Sprintf(`{"type":"flannel","dataDir":%q,"subnetFile":%q,"delegate":{"type":"bridge"}}`, filepath.Join(dir, "state"), subnet)
	},
	Delegates: []string{"bridge"},
}

// Flannel passes the conformance checks.
func TestConform(t *testing.T) {
	t.Parallel()
	delegatetest.Conform(t, delegatetest.Program(flannel().Execute), conformConfig)
}
