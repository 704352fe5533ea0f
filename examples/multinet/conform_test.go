package main

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/examples/multinet/multinet"
)

// conformConfig has two networks, one of them with two plugins.
var conformConfig = delegatetest.Config{
	Stdin: func(dir string) string {
		return fmt.Sprintf(`{"type":"multinet","cniDir":%q,"confDir":%[1]q,"binDir":%q,"delegates":[
			{"type":"bridge"}, {"name":"storage","plugins":[{"type":"macvlan"},{"type":"tuning"}]}
		]}`, filepath.Join(dir, "state"), filepath.Join(dir, "no", "bin"))
	},
	Delegates: []string{"bridge", "macvlan", "tuning"},
}

// Multinet passes the conformance checks.
func TestConform(t *testing.T) {
	t.Parallel()
	delegatetest.Conform(t, delegatetest.Program(multinet.New(multinet.Cluster{}).Execute), conformConfig)
}
