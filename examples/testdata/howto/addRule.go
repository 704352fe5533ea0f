package main

import (
	"fmt"
	"testing"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
)

// The step fails unless it knows an address.
func TestAddressesMustBeKnown(t *testing.T) {
	p := plugin.Plugin{Steps: map[string]plugin.Step{"rule": {Add: addRule}}}
	for prev, ok := range map[string]bool{
		"":                                     false,
		`,"prevResult":{"cniVersion":"1.1.0"}`: false,
		`,"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}]}`: true,
	} {
		out := delegatetest.RunPlugin(t.Context(), p.Execute, &delegatetest.Exec{}, delegatetest.Invocation{
			Command: "ADD", ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0", Path: "/opt/cni/bin",
			Stdin: fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"n","type":"mine","step":"rule"%s}`, prev),
		})
		if (out.Err() == nil) != ok {
			t.Errorf("%s: %v", prev, out.Err())
		}
	}
}
