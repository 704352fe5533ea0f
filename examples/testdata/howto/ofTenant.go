package main

import (
	"fmt"
	"testing"

	"github.com/metacni/metacni/delegate/conform"
	"github.com/metacni/metacni/delegate/plugin"
)

// The suite can be given a pod.
func TestConformWithAPod(t *testing.T) {
	p := plugin.Plugin{StateDir: "/unused", StateKey: "stateDir", Networks: ofTenant}
	conform.Test(t, conform.Program(p.Execute), conform.Config{
		Stdin: func(dir string) string {
			return fmt.Sprintf(`{"type":"mine","stateDir":%q,"tenants":{"blue":{"type":"bridge"}}}`, dir)
		},
		Delegates: []string{"bridge"}, Args: "K8S_POD_NAMESPACE=blue;K8S_POD_NAME=p",
	})
}
