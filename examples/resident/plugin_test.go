package main

import (
	"encoding/json"
	"testing"

	"github.com/metacni/metacni/delegate/delegatetest"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

func run(t *testing.T, command, stdin string) delegatetest.Outcome {
	t.Helper()
	c := delegatetest.Invocation{Command: command, Path: "/opt/cni/bin", Stdin: []byte(stdin)}
	if command != "GC" && command != "STATUS" && command != "VERSION" {
		c.ContainerID, c.IfName, c.NetNS = "c1", "eth0", "/no-such-directory/c1"
	}
	return delegatetest.RunPlugin(t.Context(), delegatetest.Program(addresses().Execute), &delegatetest.Exec{}, c)
}

func TestPlugin(t *testing.T) {
	t.Parallel()
	const prev = `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0"}],"ips":[{"address":"10.0.0.2/24"}]}`
	for name, tt := range map[string]struct {
		command, stdin string
		want           string // on stdout
		code           uint
	}{
		"addresses": {
			"ADD", `{"cniVersion":"1.1.0","name":"x","addresses":["10.1.0.2/24","fd00::2/64"],"routes":[{"dst":"0.0.0.0/0"}]}`,
			`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"},{"address":"fd00::2/64"}],"routes":[{"dst":"0.0.0.0/0"}]}`, 0,
		},
		"of the runtime": {
			"ADD", `{"cniVersion":"1.0.0","name":"x","addresses":["10.1.0.2/24"],"runtimeConfig":{"ips":["10.1.0.9/24"]}}`,
			`{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.9/24"}]}`, 0,
		},
		"in a chain": {
			"ADD", `{"cniVersion":"1.1.0","name":"x","addresses":["10.1.0.2/24"],"prevResult":` + prev + `}`,
			`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0"}],"ips":[{"address":"10.0.0.2/24"},{"address":"10.1.0.2/24"}]}`, 0,
		},
		"none":            {"ADD", `{"cniVersion":"1.1.0","name":"x"}`, "", 7},
		"no prefix":       {"ADD", `{"cniVersion":"1.1.0","name":"x","addresses":["10.1.0.2"]}`, "", 7},
		"not strings":     {"ADD", `{"cniVersion":"1.1.0","name":"x","addresses":[1]}`, "", 6},
		"bad prevResult":  {"ADD", `{"cniVersion":"1.1.0","name":"x","addresses":["10.1.0.2/24"],"prevResult":{"ips":7}}`, "", 6},
		"version too old": {"ADD", `{"cniVersion":"0.2.0","name":"x","addresses":["10.1.0.2/24","10.1.0.3/24"]}`, "", 1},
		"there":           {"CHECK", `{"cniVersion":"1.1.0","name":"x","addresses":["10.0.0.2/24"],"prevResult":` + prev + `}`, "", 0},
		"not there":       {"CHECK", `{"cniVersion":"1.1.0","name":"x","addresses":["10.0.0.3/24"],"prevResult":` + prev + `}`, "", 999},
		"nothing":         {"CHECK", `{"cniVersion":"1.1.0","name":"x","addresses":["10.0.0.3/24"]}`, "", 7},
		"DEL":             {"DEL", `{"cniVersion":"1.1.0","name":"x"}`, "", 0},
		"GC":              {"GC", `{"cniVersion":"1.1.0","name":"x"}`, "", 0},
		"ready":           {"STATUS", `{"cniVersion":"1.1.0","name":"x","addresses":["10.0.0.3/24"]}`, "", 0},
		"not ready":       {"STATUS", `{"cniVersion":"1.1.0","name":"x"}`, "", 50},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := run(t, tt.command, tt.stdin)
			nodetest.Code(t, o.Err(), tt.code)
			if tt.code == 0 {
				nodetest.Equal(t, "stdout", compact(t, string(o.Stdout)), tt.want)
			}
		})
	}
}

// compact is a JSON document with its keys in order, or nothing.
func compact(t *testing.T, text string) string {
	t.Helper()
	if text == "" {
		return ""
	}
	var v any
	nodetest.OK(t, json.Unmarshal([]byte(text), &v))
	out, err := json.Marshal(v)
	nodetest.OK(t, err)
	return string(out)
}
